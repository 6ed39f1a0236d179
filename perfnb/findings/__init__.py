"""Find what holds a step back: one rule per bottleneck, and the verdict.

The room is large because it has some thirty rules, each with its evidence, bound, advice and caveats in words.
`finding` is the engine, `facts` holds the data that rules examine, `rules/` contains the rules, and `verdict` chooses
the answer.
"""
