"""Write the words of a treebank with their part-of-speech tags as CoNLL columns, and train a tagger on them.

python examples/treebank_tags.py train.trees.gz > train.conll
python examples/treebank_tags.py dev.trees.gz > dev.conll
transduce train --task tagging --source train.conll --dev-source dev.conll --out models/tagger
"""

import sys

from transduce.text.trees import clean, read_trees


def main() -> None:
    """Print a line `word TAB tag` for each word, and an empty line after each sentence."""
    for tree in filter(None, map(clean, read_trees(sys.argv[1]))):
        print("".join(f"{leaf.word}\t{leaf.label}\n" for leaf in tree.leaves()))


if __name__ == "__main__":
    main()
