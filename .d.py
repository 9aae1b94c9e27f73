import gzip,json,collections,sys,re
from qreward.judge.parsing import *
from qreward.judge.parsing import forms as fm
from qreward.judge.parsing import text as tx
rows=[json.loads(l) for l in gzip.open('/work/shared/corpora/verdicts.jsonl.gz','rt')]
why=[]
orig=fm.FormReader._is_own
def patched(self,s,before):
    r=orig(self,s,before)
    if not r:
        if not s.own and not fm._OWN.search(before): why.append('scope')
        else: why.append('before: '+before[-90:])
    return r
fm.FormReader._is_own=patched
rep=tx._report; log=[]
def report(part,*,titled):
    r=rep(part,titled=titled)
    if r: log.append((r,part[-100:]))
    return r
tx._report=report
int=tx._introduces
def intr(part):
    r=int(part)
    if r: log.append((r,part[-100:]))
    return r
tx._introduces=intr
F={'s':form_of('[[5]]'),'p':form_of('[[A]]')}
c=collections.Counter(); ex=collections.defaultdict(list)
for r in rows:
    pair=isinstance(r['expected'],str); why.clear(); log.clear()
    try: read(r['text'],PreferenceVerdict,form=F['p']) if pair else read(r['text'],ScoreVerdict,scale=(1,10),form=F['s'])
    except Unreadable as e:
        if why and why[0]=='scope': c[r['family'],'scope',log[-1][0]]+=1; ex[r['family']].append(log[-1])
        elif why: print(r['family'],why[0])
        elif 'follows' in str(e): 
            i=r['text'].rfind('[['); print('AFTER',r['family'],repr(r['text'][i:i+500]))
        else: print('NONE', r['family'], repr(r['text'][-200:]))
for k,v in c.items(): print(v,k)
import random; random.seed(2)
for f,l in ex.items():
    print(f)
    for e in random.sample(l,min(12,len(l))): print('   ',e)
