import sys; sys.path.insert(0,'tests/judge/parsing')
from test_languages import texts, LANGUAGES
from test_verdict_corpus import *
from qreward.judge.parsing import form_of
def out(kind,text,form):
    model,field=FIELDS[kind]
    try: v=getattr(read(text,model,scale=(0.,10.),form=form),field)
    except Unreadable as e: return 'none: '+str(e)[:60]
    return f"{v:g}" if isinstance(v,float) else str(v)
forms={'[[5]]':'[[7]]','<score>5</score>':'<score>7</score>','\\boxed{5}':'\\boxed{7}'}
for n in ('verdicts','retracted','denied','reported','task'):
    for lang,ts in LANGUAGES[n].items():
        if lang=='about': continue
        for t in ts:
            for f,v in [*forms.items(),(None,'[[7]]'),(None,'Score: 7')]:
                o=out('score',t.replace('<?>',v),f and form_of(f))
                ok=(o=='7') if n=='verdicts' and f and f[1]!='b' else o.startswith('none') if n!='verdicts' else o=='7' or o.startswith('none')
                if not ok: print(n,f,o,repr(t.replace('<?>',v)))
            for f,v in (('[[A]]','[[B]]'),('[[A>B]]','[[B>>A]]')):
                t2=t.replace('<?>',v); o=out('preference',t2,form_of(f))
                ok=(o=='B') if n=='verdicts' else o.startswith('none')
                if not ok: print(n,f,o,repr(t2))
