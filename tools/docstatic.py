"An nbdev doc processor: plotly figures and ipywidgets views of an executed notebook become HTML that needs only site-local JavaScript."
import json, uuid
from fastcore.nbio import mk_cell
from nbdev.process import Processor

VIEW = 'application/vnd.jupyter.widget-view+json'
STATE = 'application/vnd.jupyter.widget-state+json'
PLOTLY = 'application/vnd.plotly.v1+json'
BASE = 'static'


def _js(o): return json.dumps(o).replace('</', '<\\/')   # a literal </script> would end the element


def _plotly_html(spec):
    i, height = 'p'+uuid.uuid4().hex[:12], spec.get('layout', {}).get('height', 400)
    return (f'<script src="{BASE}/plotly.min.js"></script><div id="{i}" style="height:{height}px;width:100%"></div>'
            f'<script>Plotly.newPlot("{i}",{_js(spec.get("data", []))},{_js(spec.get("layout", {}))},{{responsive:true}})</script>')


class StaticOutputs(Processor):
    "Works for Quarto and smalldocs alike."
    def begin(self): self.views = 0

    def cell(self, cell):
        if cell.cell_type != 'code': return
        keep = []
        for o in cell.get('outputs', []):
            d = o.get('data', {})
            if PLOTLY in d: o['data'] = {'text/html': _plotly_html(d[PLOTLY])}
            elif VIEW in d:
                self.views += 1
                o['data'] = {'text/html': f'<div class="widget-out"><script type="{VIEW}">{_js(d[VIEW])}</script></div>'}
            elif 'window.PlotlyConfig' in ''.join(d.get('text/html', '')): continue   # the renderer's own loader
            keep.append(o)
        cell['outputs'] = keep

    def end(self):
        if not self.views: return
        state = self.nb.metadata.get('widgets', {}).get(STATE, {})
        self.nb.cells.append(mk_cell('\n'.join([
            f'<script src="{BASE}/require.js"></script>',
            f'<script>require.config({{paths:{{anywidget:"{BASE}/anywidget"}}}})</script>',
            f'<script type="{STATE}">{_js(state)}</script>',
            f'<script src="{BASE}/embed-amd.js"></script>']), 'markdown'))
