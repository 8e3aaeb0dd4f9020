"""What pages show, made to run: a page is read as steps, the steps are taken in order, and outputs are compared.

- `python` blocks run in page order, as one module. So far as they have run, they are also there as the file `PAGE.py`.
- A block with a `title="name"` is a file, written when its turn comes, and run only by what follows.
- `console` blocks hold commands, lines that begin with `$ `, each with its output below if it is shown. One bash runs
  all of a page, so `cd`, `export` and `kill %1` do what they say. A command that is to fail ends in `# exit 2`; one
  that ends in `&` goes on until the page ends.
- `json`, `toml` and `yaml` blocks must be just that; `text` blocks are only looked at. There is nothing else.

An output is compared for the figures that it shows, not for its layout. The words of a shown line must be printed in
one line and in this order, where other words may stand between them and around them; the lines must be printed in
order, where others may stand between them. A page may break a long line. `…` in a word stands for anything in that
line; between words, or on a line of its own, it is only for the reader. Rules and progress bars do not matter. The
ports 8000 to 8009 stand for free ones.
"""

from tests.pages.reader import reader_variables, run_page, shows
from tests.pages.steps import FENCE, PageError, steps_of
from tests.pages.warm import warm_commands

__all__ = ["FENCE", "PageError", "reader_variables", "run_page", "shows", "steps_of", "warm_commands"]
