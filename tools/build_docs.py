"""Build the static site from nbs/, with Quarto where it is installed and with smalldocs where it is not.

  python tools/build_docs.py          pages show the outputs that the notebooks carry
  python tools/build_docs.py --exec   notebooks are executed first (papermill notebooks are not)

1. take (or execute) every notebook                                          -> _exec/
2. run nbdev's doc processors and docstatic.StaticOutputs on them            -> _proc/
3. render with `quarto render`, else `smalldocs render` (same _quarto.yml)   -> _docs/
"""
import ast, os, re, shutil, subprocess, sys, time
from pathlib import Path
os.environ['IN_TEST'] = '1'
os.environ.setdefault('PLOTLY_RENDERER', 'plotly_mimetype')
import nbformat, plotly
from nbclient import NotebookClient
from fastcore.nbio import read_nb, write_nb
from nbdev.config import get_config
from nbdev.process import NBProcessor
from nbdev.processors import FilterDefaults
from nbdev.quarto import refresh_quarto_yml
from nbdev.test import _skip_cell   # the same skip rules as nbdev_test

root = Path(__file__).resolve().parent.parent
os.chdir(root)
cfg = get_config()
nbs, exec_, proc, out = cfg.nbs_path, root/'_exec', root/'_proc', root/cfg.doc_path.name


def page(name: str) -> str:
    "A notebook's name on the site: without its number, since the links in docstrings (which nbdev writes) have none; what has none is a notebook to run."
    return name[m.end():] if (m := re.match(r'\d+_', name)) else name if name == 'index.ipynb' else f'run_{name}'


def linked(text: str) -> str:
    "Markdown links and sidebar lines with the names on the site."
    return re.sub(r'(\]\(|- )([\w-]+\.ipynb)', lambda m: m[1] + page(m[2]), text)


def has_parameters(nb) -> bool: return any('parameters' in c.metadata.get('tags', []) for c in nb.cells)


def execute(path):
    nb = nbformat.read(path, 4)
    if has_parameters(nb): return shutil.copy2(path, exec_/path.name)
    skip = _skip_cell(NBProcessor(path, rm_directives=False, process=True).nb, cfg.tst_flags.split())
    parsed = {c.id: c for c in NBProcessor(path, rm_directives=False, process=True).nb.cells if c.cell_type == 'code'}
    for c in nb.cells:
        if c.cell_type == 'code' and skip(parsed[c.id]): c.metadata.setdefault('tags', []).append('skip-execution')
    NotebookClient(nb, kernel_name='python3', timeout=1800, store_widget_state=True,
                   resources={'metadata': {'path': str(path.parent)}}).execute()
    nbformat.write(nb, exec_/path.name)


def only_imports_run(nb):
    "nbdev runs every cell that holds an import, to know the names that it documents; an example among them needs what came before it, so it is kept out."
    for c in nb.cells:
        if c.cell_type != 'code' or re.match(r'#\|\s*export', c.source): continue
        try: body = ast.parse(c.source).body
        except SyntaxError: continue                     # IPython magics
        if not all(isinstance(s, (ast.Import, ast.ImportFrom)) for s in body): c.source = '#| eval: false\n' + c.source


def process(path):
    nb = read_nb(exec_/path.name)
    nb.path_ = path
    only_imports_run(nb)
    FilterDefaults()(nb)
    for c in nb.cells:
        c.pop('has_sd', None)   # nbdev leaves this key in, and it is not valid nbformat
        if c.cell_type == 'markdown': c.source = linked(c.source.replace('](../figures/', '](figures/'))
    write_nb(nb, proc/page(path.name))


def static_files():
    "The site needs no CDN: plotly, anywidget and, where npm packages are installed, the widget manager."
    st = proc/'static'
    st.mkdir()
    npm = Path(os.environ.get('DOCS_NPM', root/'node_modules'))   # npm i requirejs @jupyter-widgets/html-manager
    for src, name in [(Path(plotly.__file__).parent/'package_data/plotly.min.js', 'plotly.min.js'),
                      (Path(sys.prefix)/'share/jupyter/nbextensions/anywidget/index.js', 'anywidget.js'),
                      (npm/'requirejs/require.js', 'require.js'),
                      (npm/'@jupyter-widgets/html-manager/dist/embed-amd.js', 'embed-amd.js')]:
        if src.exists(): shutil.copy2(src, st/name)


def main():
    for d in (exec_, proc, out): shutil.rmtree(d, ignore_errors=True)
    exec_.mkdir(); proc.mkdir()
    refresh_quarto_yml()
    for p in sorted(nbs.glob('*.ipynb')):
        t = time.time()
        execute(p) if '--exec' in sys.argv else shutil.copy2(p, exec_/p.name)
        process(p)
        print(f'{p.name}: {time.time()-t:.1f} s', flush=True)
    for p in [root/'_quarto.yml', *nbs.glob('*.yml'), *nbs.glob('*.css')]: (proc/p.name).write_text(linked(p.read_text()))
    shutil.copytree(root/'figures', proc/'figures', dirs_exist_ok=True)
    static_files()
    if shutil.which('quarto'):
        subprocess.run(['quarto', 'render', '.', '--no-execute', '--no-cache', '--output-dir', str(out)], cwd=proc, check=True)
    else:
        subprocess.run([shutil.which('smalldocs') or str(Path(sys.executable).parent/'smalldocs'), 'render', str(proc)], check=True)
        shutil.move(proc/cfg.doc_path.name, out)
    for d in ('static', 'figures'): shutil.copytree(proc/d, out/d, dirs_exist_ok=True)
    missing = {n for n in re.findall(r"'(\w+\.html)#", (cfg.lib_path/'_modidx.py').read_text()) if not (out/n).is_file()}
    if missing: sys.exit(f'docstrings link to pages that the site has not: {", ".join(sorted(missing))}')
    print('site:', (out/'index.html').relative_to(root))


if __name__ == '__main__': main()
