"""Make README.md from nbs/index.ipynb: prose, code and outputs as Markdown, without Quarto.

  python tools/build_readme.py           writes README.md
  python tools/build_readme.py --check   exits 1 when README.md is out of date
"""
import re, sys
from pathlib import Path
import nbformat
from nbconvert import MarkdownExporter

root = Path(__file__).resolve().parent.parent


def readme() -> str:
    nb = nbformat.read(root/'nbs'/'index.ipynb', 4)
    nb.cells = [c for c in nb.cells if not re.match(r'#\|\s*(hide|default_exp|export)', c.source)]
    for c in nb.cells: c.source = re.sub(r'^#\|.*\n', '', c.source, flags=re.M)
    text, _ = MarkdownExporter().from_notebook_node(nb)
    text = re.sub(r'\]\(\.\./', '](', text)          # links of the notebook are relative to nbs/
    return '<!-- made from nbs/index.ipynb by tools/build_readme.py -->\n\n' + re.sub(r'\n{3,}', '\n\n', text).strip() + '\n'


if __name__ == '__main__':
    path, new = root/'README.md', readme()
    if '--check' in sys.argv:
        if path.read_text() != new: sys.exit('README.md is not what nbs/index.ipynb says: run `make readme`.')
    else: path.write_text(new)
