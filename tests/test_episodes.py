"Episodes on disk: exact, append-only, keyed by id, and whole after kill -9 at any moment."
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest

from cuda_agent_lab import episodes
from cuda_agent_lab.episodes import ARRAYS, EXIT_STATUSES, Episode, EpisodeStore, Message, ToolCall, from_line, read_parquet, same, status_of, to_line, to_parquet


def make(id='e', n=40, seed=0, **kw):
    r = np.random.default_rng(seed)
    d = dict(ids=r.integers(0, 2**31 - 1, n), mask=r.random(n) < .5, logp=r.integers(0, 2**32, n, dtype=np.uint32).view(np.float32), version=r.integers(-1, 9, n), turn=r.integers(0, 150, n),
             reward=-1., status='train', exit_status='turn_limit', verdicts=dict(final=dict(status='correct', speedup_eager=dict(median=1.1)), best=None, turns=[]),
             meta=dict(note='line\nbreak \u2028 ü \ud83d\ude00'.encode('utf-16', 'surrogatepass').decode('utf-16')))
    d['logp'] = np.where(d['mask'] & ~np.isfinite(d['logp']), np.float32(-1), d['logp']).astype(np.float32)
    return Episode(id, 'suite/level1/x', 'hash', 'p', seed, [Message('user', 'a\nb'), Message('assistant', '', (ToolCall('Bash', dict(command='ls\n"x"')), ToolCall('', {}, 'bad'))), Message('tool', 'ü')], **d | kw)


def quiet(f):
    with warnings.catch_warnings(): warnings.simplefilter('ignore'); return f()


# ---- 18: each exit status maps to exactly one of {train, drop} ----------------------------------------------------------

def test_exit_statuses():
    for name, (status, sentence) in EXIT_STATUSES.items():
        assert status in ('train', 'drop') and status_of(name) == status and sentence.endswith('.') and '\n' not in sentence
        reward = None if status == 'drop' else 0.
        assert make(exit_status=name, status=status, reward=reward).status == status
        other = dict(train='drop', drop='train')[status]
        with pytest.raises(ValueError, match='means'): make(exit_status=name, status=other, reward=None if other == 'drop' else 0.)
        with pytest.raises(ValueError, match='reward'): make(exit_status=name, status=status, reward=0. if status == 'drop' else None)
    with pytest.raises(ValueError, match='Unknown exit status'): make(exit_status='else')
    assert len(json.loads(json.dumps(EXIT_STATUSES))) == len(EXIT_STATUSES) and {s for s, _ in EXIT_STATUSES.values()} == {'train', 'drop'}


# ---- 26: round-trip ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize('n', [0, 1, 40, 5000])
def test_round_trip(tmp_path, n):
    "Random bit patterns as float32 (NaN payloads and infinities outside of the mask): log, Parquet and log again are identical"
    store = EpisodeStore(tmp_path)
    for i in range(5): store.append(make(f'e{i}', n, i))
    raw, back = store.log.read_bytes(), store.read()
    assert all(same(a, make(f'e{i}', n, i)) for i, a in enumerate(back))
    to_parquet(store)
    from_parquet = read_parquet(tmp_path)
    assert all(same(a, b) for a, b in zip(from_parquet, back)) and len(from_parquet) == 5
    assert b''.join(to_line(e).encode() + b'\n' for e in from_parquet) == raw, 'Parquet -> log: the same bytes'
    for e in back + from_parquet: assert all(getattr(e, k).dtype == dt for k, dt in ARRAYS.items())


def test_parquet_types(tmp_path):
    import pyarrow.parquet as pq
    store = EpisodeStore(tmp_path); store.append(make())
    schema = pq.read_schema(to_parquet(store))
    got = {k: str(schema.field(k).type.value_type) for k in ARRAYS}
    assert got == dict(ids='int32', mask='bool', logp='float', version='int32', turn='int16')


def test_parquet_parts_are_whole_or_absent(tmp_path, monkeypatch):
    store = EpisodeStore(tmp_path); store.append(make('a'))
    monkeypatch.setattr(os, 'replace', lambda *a: (_ for _ in ()).throw(OSError('killed here')))
    with pytest.raises(OSError): to_parquet(store)
    monkeypatch.undo()
    assert read_parquet(tmp_path) == []
    a = to_parquet(store); store.append(make('b')); b = to_parquet(store)
    assert (a.name, b.name) == ('part-00000.parquet', 'part-00001.parquet') and [e.id for e in read_parquet(tmp_path)] == ['a', 'b'] and to_parquet(store) is None


def test_arrays_are_checked():
    assert make(logp=np.zeros(40)).logp.dtype == np.float32
    for bad, text in [(dict(logp=np.full(40, .1)), 'float64'), (dict(ids=np.full(40, 2**40)), 'int64'), (dict(turn=[0] * 39), 'differ in length'),
                      (dict(ids=np.zeros((2, 20), np.int32)), 'flat'), (dict(logp=[float('nan')] * 40), 'not finite')]:
        with pytest.raises(ValueError, match=text): make(**bad)
    with pytest.raises(OverflowError): make(turn=[99999] * 40)
    x = np.random.default_rng(0).random(40, np.float32)
    assert make(logp=x.tolist()).logp.tobytes() == x.tobytes(), 'float32 -> list -> float32 loses nothing'


# ---- append only, keyed, torn -----------------------------------------------------------------------------------------------

def test_append_refuses_a_second_id(tmp_path):
    a, b = EpisodeStore(tmp_path), EpisodeStore(tmp_path)
    a.append(make('x'))
    for s in (a, b, EpisodeStore(tmp_path)):
        with pytest.raises(ValueError, match='already'): s.append(make('x', seed=1))
    assert len(b.read()) == 1


def test_two_stores_see_each_other(tmp_path):
    a, b = EpisodeStore(tmp_path), EpisodeStore(tmp_path)
    for i in range(6): (a, b)[i % 2].append(make(f'{i}'))
    assert a.ids() == b.ids() == [str(i) for i in range(6)] and [e.id for e in a.read(['4', '1'])] == ['4', '1']
    with pytest.raises(KeyError): a.read(['nine'])


def test_every_cut_of_the_last_record(tmp_path):
    "Whatever prefix of the last line reached the disk: the rest reads, the loss is reported, the next append repairs"
    store = EpisodeStore(tmp_path); store.append(make('a', 5)); n = store.log.stat().st_size; store.append(make('b', 5, 1))
    whole = store.log.read_bytes()
    for cut in [n + 1, n + 7, n + 30, len(whole) - 1, *range(n + 40, len(whole), 97)]:
        store.log.write_bytes(whole[:cut])
        s = EpisodeStore(tmp_path)
        with pytest.warns(UserWarning, match=f'{cut - n} bytes'): assert [e.id for e in s.read()] == ['a']
        with pytest.warns(UserWarning): s.append(make('b', 5, 1))
        assert store.log.read_bytes() == whole and s.torn == 0
        with warnings.catch_warnings(): warnings.simplefilter('error'); assert EpisodeStore(tmp_path).ids() == ['a', 'b']


def test_torn_tail_with_garbage_and_a_broken_middle(tmp_path):
    store = EpisodeStore(tmp_path); store.append(make('a')); store.append(make('b')); raw = store.log.read_bytes()
    store.log.write_bytes(raw + b'\0' * 5000)           # a file system that extended the file before it wrote
    with pytest.warns(UserWarning): assert EpisodeStore(tmp_path).ids() == ['a', 'b']
    lines = raw.splitlines(keepends=True)
    store.log.write_bytes(lines[0] + b'nonsense\n' + lines[1])
    with pytest.raises(ValueError, match='line 2'): EpisodeStore(tmp_path).ids()
    store.log.write_bytes(lines[0][:200] + b'\n' + lines[1])
    with pytest.raises(ValueError, match='line 1'): EpisodeStore(tmp_path).read()


def test_read_is_fresh_while_somebody_writes(tmp_path):
    store, stop, errors = EpisodeStore(tmp_path), threading.Event(), []
    def read():
        mine = EpisodeStore(tmp_path)
        while not stop.is_set():
            try: assert [e.id for e in quiet(mine.read)] == [str(i) for i in range(len(mine._ids))]
            except Exception as e: errors.append(e); return
    t = threading.Thread(target=read); t.start()
    for i in range(60): store.append(make(str(i)))
    stop.set(); t.join()
    assert not errors


WRITER = '''
import sys; sys.path.insert(0, {tests!r})
from test_episodes import make
from cuda_agent_lab.episodes import EpisodeStore
import warnings; warnings.simplefilter('ignore')
s = EpisodeStore({folder!r}); k = len(s.ids())
while True:
    s.append(make(f'{{sys.argv[1]}}/{{k}}', 20000, k)); print(k, flush=True); k += 1
'''


def test_kill_9_loses_at_most_the_record_in_hand(tmp_path):
    "Two writers at once, killed at random moments, five times over: every record that was acknowledged is there and exact"
    code, acknowledged = WRITER.format(tests=os.path.dirname(__file__), folder=str(tmp_path)), set()
    for round in range(3):
        ps = [subprocess.Popen([sys.executable, '-c', code, f'{round}{w}'], stdout=subprocess.PIPE, text=True) for w in 'ab']
        first = [p.stdout.readline() for p in ps]
        time.sleep(.1 + .037 * round)
        for p in ps: os.kill(p.pid, signal.SIGKILL)
        for p, w, f in zip(ps, 'ab', first): acknowledged |= {f'{round}{w}/{int(l)}' for l in [f, *p.stdout.read().splitlines()] if l.strip()}; p.wait()
    store = EpisodeStore(tmp_path)
    got = quiet(store.read)
    assert acknowledged <= {e.id for e in got} and len({e.id for e in got}) == len(got) and len(got) <= len(acknowledged) + 6
    assert all(same(e, make(e.id, 20000, int(e.id.split('/')[1]))) for e in got)
    quiet(lambda: store.append(make('after')))
    with warnings.catch_warnings(): warnings.simplefilter('error'); assert len(EpisodeStore(tmp_path).read()) == len(got) + 1


def test_half_of_a_surrogate_pair_is_kept(tmp_path):
    "JSON from a model can hold it; the log and Parquet keep it, and old logs with plain UTF-8 are read"
    store, e = EpisodeStore(tmp_path), make('bad', meta=dict(note='\ud800'))
    e.messages = [Message('user', 'a\ud800b'), Message('assistant', 'ü', (ToolCall('Bash\udc00', dict(command='\udfff')),))]
    store.append(e)
    assert same(store.read()[0], e) and store.log.read_bytes().isascii() and store.to_parquet() and same(read_parquet(tmp_path)[0], e)
    store.log.write_text(json.dumps(json.loads(to_line(make('old'))), ensure_ascii=False) + '\n')
    assert same(EpisodeStore(tmp_path).read()[0], make('old'))


def test_a_line_is_for_people(tmp_path):
    d = json.loads(to_line(make()))
    assert list(d)[0] == 'id' and d['messages'][1]['calls'][0] == dict(name='Bash', arguments=dict(command='ls\n"x"')) and d['exit_status'] == 'turn_limit'
    assert '\n' not in to_line(make()) and same(from_line(to_line(make())), make()) and episodes.to_line(make()).startswith('{"id": "e"')


def test_cost_of_append(tmp_path):
    store, e = EpisodeStore(tmp_path), [make(str(i), 2000, i) for i in range(50)]
    t = time.perf_counter()
    for x in e: store.append(x)
    print(f'{(time.perf_counter() - t) / 50 * 1e3:.2f} ms per append (with fsync)')
    assert (time.perf_counter() - t) / 50 < .2
