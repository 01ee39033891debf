"""Measures what the number of classes does to losses: softmax and SimPLE on 50 to 633 characters.

    python benchmarks/classes.py --data ../shared/data --out runs/classes

Measures: R@1 and MAP@R on the ten unseen alphabets of Omniglot, of variants of
    recipes/image/omniglot_losses.py that are trained on 50, 100, 200, 400 and all 633 characters
    of the other alphabets, three seeds each. The characters are drawn once; a larger number holds
    the smaller ones. All have the same number of steps. In brackets is the 95 % interval over the
    tested characters. What is in OUT is not run again.
    Variants: softmax; simple by its own similarity; the same embeddings by cosine; simple without
    its memory bank, by cosine.
Peers: none. Limit: none.
Needs: omniglot/ in the folder of --data.
Takes: 40 CPU seconds a run, 45 runs.
Gives: a table of docs/results.md that says whether SimPLE needs many classes.
"""
