import gzip,json,collections,sys
from qreward.judge.parsing import *
rows=[json.loads(l) for l in gzip.open('/work/shared/corpora/verdicts.jsonl.gz','rt')]
F={'s':form_of('[[5]]'),'p':form_of('[[A]]')}
c=collections.Counter(); show=int(sys.argv[1]) if len(sys.argv)>1 else 0; sh=collections.Counter()
for r in rows:
    pair=isinstance(r['expected'],str)
    try:
        v=read(r['text'],PreferenceVerdict,form=F['p']).preferred if pair else read(r['text'],ScoreVerdict,scale=(1,10),form=F['s']).score
        k='right' if v==r['expected'] else 'WRONG'
    except Unreadable as e: k=e.reason; v=None
    c[r['family'],k]+=1
    if k!='right' and (sh[r['family'],k]<show or k=='WRONG'):
        sh[r['family'],k]+=1; i=r['text'].rfind('[['); print(k,v,r['expected'],repr(r['text'][max(0,i-200):i+200]))
for k,n in sorted(c.items()): print(n,k)
