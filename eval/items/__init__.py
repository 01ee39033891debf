"""Items: what they are, how they are listed, labelled and paired, and whether they are there."""
