import sys,time; sys.path.insert(0,'tests/judge/parsing')
from test_hostile_sizes import *
import random
P=[*PIECES,'a ','A','assistant claims ','"x ','writes ','[[7]] a ','rate ','B ','if ','the answer ','の','写道 ','A is a ','rating: "','<score>7</score>','hope that ','\u25c1think\u25b7','not, ']
for p in P:
    t=(p*(99000//len(p)+1))[:99000]
    for end in ('','\n\nRating: [[7]]','[[7]]\nA'):
        for m in (ScoreVerdict,PreferenceVerdict):
            s=time.perf_counter()
            try: read(t+end,m,scale=(0,10) if m is ScoreVerdict else None,form=FORMS[1])
            except Unreadable: pass
            d=time.perf_counter()-s
            if d>.6: print(repr(p),repr(end),m.__name__,round(d,2))
