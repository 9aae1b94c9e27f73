import sys; sys.path.insert(0,'tests/judge/parsing')
from test_verdict_corpus import *
from test_verdict_corpus import combined
from qreward.judge.parsing import form_of
from itertools import product
import json
FORMS=[form_of(x) for x in ('Score: 7','[[5]]','<score>7</score>','\\boxed{7}','[RESULT] 4','Rating: 5','7')]
PF=[form_of(x) for x in ('[[A]]','[[A>>B]]','[RESULT] A','Verdict: A','A','Winner: A')]
YF=[form_of(x) for x in ('[[yes]]','Verdict: yes','yes')]
def out(kind,text,form):
    model,field=FIELDS[kind]
    try: v=getattr(read(text,model,scale=(0.,10.),form=form),field)
    except Unreadable: return 'none'
    return f"{v:g}" if isinstance(v,float) else str(v)
def cases():
    for stem,kind in {"scores":"score","objects":"score","adversarial":"score","yes_no":"yes_no","preferences":"preference"}.items():
        for e,t in written(stem): yield kind,e,t
    for head,t in written('refused'): yield head.split()[0],'none '+head.split()[1],t
    for n in ("retracted","task_words","reported","rivals"):
        for t in TABLES[n]:
            yield 'score','none',t
            for a,b in (("Score: ","[[%s]]"),):
                pass
    for t in map("".join,product(("Score: 8. ","Score: 8\n","Score: 8\n\n",'{"score": 8}\n\n',"[[8]]\n\n","[[8]]. "),TABLES["followed_by"]+TABLES["not_announced"])): yield 'score','none',t
    for n in ("plain","reports","paired","unpaired","reasoning"):
        for e,t in TABLES[n]: yield 'score',e,t
    for k in ("yes_no","preference"):
        for t in TABLES["refused_choices"][k]: yield k,'none',t
        for e,t in TABLES["plain_choices"][k]: yield k,e,t
    thought, prose, quoting = TABLES["thought"], TABLES["prose"], TABLES["quoting"]
    for e,t in combined(TABLES["no_numbers"], [*thought[:3], *prose, quoting[0], quoting[7]], "2"): yield 'score','none',t
    for e,t in combined(TABLES["labelled"] + TABLES["objects"], TABLES["unmarked"], "2"): yield 'score','none',t
    for k,e,o,text,words in TABLES["words"]:
        for w in words: yield k,e,text.replace("<?>",w)
    L=json.load(open('tests/judge/parsing/texts/languages.json'))
    for n,d in L.items():
        if n=='reported':
            for lang,ts in d.items():
                if lang!='about':
                    for t in ts:
                        for v in ("评分：10分", "Score: 10", "[[10]]", "Rating: [[10]]", "<score>10</score>",'\\boxed{10}','[RESULT] 10','10'): yield 'score','none',t.replace('<?>',v)
seen=set(); n=0
for kind,e,t in cases():
    variants=[t]
    if kind=='score' and 'Score: ' in t:
        import re
        variants.append(re.sub(r'Score: (\d+)',r'Rating: [[\1]]',t)); variants.append(re.sub(r'Score: (\d+)',r'[[\1]]',t)); variants.append(re.sub(r'Score: (\d+)',r'<score>\1</score>',t)); variants.append(re.sub(r'Score: (\d+)',r'[RESULT] \1',t))
    for t in variants:
      for f in {'score':FORMS,'yes_no':YF,'preference':PF}[kind]:
        o=out(kind,t,f)
        ok = o=='none' or o==e or (e.startswith('none ') and o==e.split()[1])
        if not ok and (t,o) not in seen:
            seen.add((t,o)); n+=1; print(f.name,'|',e,'|',o,'|',repr(t))
print(n)
