"""Find out what slows a step down, with one rule per bottleneck, and reach a verdict.

This package is large because it contains about thirty rules, each of which describes its evidence, bound, advice and
caveats. `finding` is the engine, `facts` computes the data that rules examine, `rules/` contains the rules, and
`verdict` chooses the verdict.
"""
