"""A report: whole, self-contained, the same bytes for the same run, and deaf to hostile words."""

import html
import html.parser
import json
import re
import shlex

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import determinax as dx
from determinax import _terminal
from determinax._advice import next_step
from determinax._diagnostics import Plain, Weights
from determinax._drawing.board import Board, Span, ticks
from determinax._report import _figures
from determinax._states import Fault
from determinax.cli.commands import app
from determinax.operators import Products

RNG = np.random.default_rng(0)
A = np.linalg.qr(RNG.standard_normal((12, 12)))[0] + 0.05 * RNG.standard_normal((12, 12))
KEY = jax.random.key(0)
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>'


def run(**options):
    return dx.log_abs_det(A, dx.MonteCarlo(2000), key=KEY, **options)


@pytest.fixture(scope="module")
def estimate():
    return run(trace=True)


def words(path):
    """The text of a page, without tags."""
    text = re.sub(r"<(style|script).*?</\1>", "", path.read_text(), flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", text))


def test_a_report_shows_the_verdict_the_value_and_where_it_comes_from(estimate, tmp_path):
    estimate.report(tmp_path / "a.html", exact=1.25, source="a.npy")
    said = words(tmp_path / "a.html")
    value = f"{float(estimate.log_abs_det):.3f}"
    for part in (value, estimate.status, "off by", "a.npy", "digest of the operator", "p = "):
        assert part in said, part
    page = (tmp_path / "a.html").read_text()
    assert page.count("<svg") == 10  # five figures, each for a wide page and for a phone
    assert len(page) < 150_000


def test_the_same_run_gives_the_same_bytes(estimate, tmp_path):
    estimate.report(tmp_path / "a.html")
    run(trace=True).report(tmp_path / "b.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_nothing_is_asked_for_from_elsewhere(estimate, tmp_path):
    estimate.report(tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text()
    assert "default-src 'none'" in page
    assert "unsafe" not in page
    assert re.findall(r"(?:href|src)=\"(?!data:)", page) == []
    assert "http:" not in page.replace('http-equiv="', "")
    assert "https:" not in page


class Tags(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.seen = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, *(name for name, _ in attrs if name.startswith("on"))))


def tags_of(path):
    return Tags(path.read_text()).seen


def test_hostile_words_stay_words(tmp_path):
    """In the source, in a method's name, in a note, in the command and in the quantity."""

    def made(words):
        number = jnp.asarray(0.5)
        return dx.Estimate(
            number, number, Plain(), Products(3), method=words, notes=(words,), quantity=words
        )

    made("x").report(tmp_path / "good.html", source="x", command="x")
    made(HOSTILE).report(tmp_path / "bad.html", source=HOSTILE, command=HOSTILE)
    assert tags_of(tmp_path / "bad.html") == tags_of(tmp_path / "good.html")
    assert "alert(1)" in words(tmp_path / "bad.html")
    assert made(HOSTILE)._repr_html_().count("<script") == 0


def test_a_report_without_a_trace_says_how_to_have_one(tmp_path):
    bare = run()
    bare.report(tmp_path / "a.html")
    assert "trace=True" in words(tmp_path / "a.html")


def test_a_batch_has_no_report(estimate, tmp_path):
    batch = jax.tree.map(lambda x: jnp.stack([x, x]), estimate)
    with pytest.raises(ValueError, match="take one"):
        batch.report(tmp_path / "a.html")
    assert not list(tmp_path.iterdir())
    assert batch._repr_html_() is None


def test_a_place_that_cannot_be_written_to_is_named(estimate, tmp_path):
    with pytest.raises(dx.StorageError, match="missing"):
        estimate.report(tmp_path / "missing" / "a.html")


@pytest.mark.parametrize(("n", "tag"), [(2, "circle"), (3, 'class="globe"')])
def test_densities_of_two_and_three_dimensions_are_drawn(estimate, tmp_path, n, tag):
    proposal = dx.Proposal(dx.flows.projective_linear(n))
    estimate.report(tmp_path / "a.html", density={"q": proposal, "p": proposal})
    page = (tmp_path / "a.html").read_text()
    assert page.count(tag) >= 2
    assert "Densities on the" in page
    assert "svg" in proposal._repr_html_()


def test_batches_that_disagree_are_seen():
    """p is uniform for draws of one law, and tiny where one part saw what the others missed."""

    class Batches:
        def __init__(self, value):
            self.value = value

        def batches(self):
            return np.full(16, 100.0), self.value, np.full(16, 0.1)

    class Holder:
        def __init__(self, value):
            self.trace = Batches(value)

    found = [_figures.agreement(Holder(0.1 * RNG.standard_normal(16)))[2] for _ in range(200)]
    assert 0.4 < np.mean(found) < 0.6
    assert 0.02 < np.mean(np.array(found) < 0.1) < 0.2
    odd = np.zeros(16)
    odd[3] = 1.0
    assert _figures.agreement(Holder(odd))[2] < 1e-6


@pytest.fixture(scope="module")
def hard():
    return dx.log_abs_det(np.diag([1.0] * 9 + [1e-4]), dx.MonteCarlo(1000), key=KEY)


def test_the_next_step_names_a_cure_that_can_be_run(hard):
    step = next_step(hard)
    assert step.options == "--method vde"
    namespace = {"dx": dx, "A": np.diag([1.0] * 9 + [1e-4]), "key": KEY}
    *before, last = step.python.split("; ")
    exec("; ".join(before), namespace)
    assert eval(last, namespace).status in ("exact", "ok")
    assert next_step(dx.log_abs_det(A)) is None
    near = np.linalg.qr(A)[0] + 0.01 * np.eye(12)  # nearly a rotation: equal weights, but few
    few = next_step(dx.log_abs_det(near, dx.MonteCarlo(50), key=KEY))
    assert "--method mc --samples" in few.options
    shallow = next_step(dx.log_abs_det(np.diag(np.arange(1.0, 40)), dx.Lanczos(5, 2), key=KEY))
    assert "--method lanczos" in shallow.options


def test_a_hundred_equal_weights_up_to_rounding_are_a_hundred():
    found = Weights(
        num_draws=jnp.asarray(100),
        effective_sample_size=jnp.asarray(99.99999999999999),
        max_weight_share=jnp.asarray(0.01),
        spread=jnp.asarray(1e-9),
        pareto_k=jnp.asarray(jnp.nan),
        are_equal=jnp.asarray(False),
        num_tail=20,
        is_linear=True,
    )
    assert not found.reasons(1.0, 1e-12, None, Fault.none())


def test_the_cure_keeps_the_method_and_its_own_cure_is_none():
    near = np.linalg.qr(A)[0] + 0.01 * np.eye(12)
    proposal = dx.fit_linear(near, key=KEY, max_matvecs=8).proposal
    namespace = {"dx": dx, "A": near, "key": KEY, "proposal": proposal}
    for method, name in (
        (dx.MonteCarlo(50), "--method mc --samples"),
        (dx.MonteCarlo(48, "frames"), "--samples 24000 --frames"),
        (dx.Variational(proposal, 50), "--method vde --samples"),
        (dx.Deflated(2, dx.MonteCarlo(32)), "--directions 2"),
    ):
        step = next_step(dx.log_abs_det(near, method, key=KEY))
        assert step is not None
        assert name in step.options
        assert next_step(eval(step.python, namespace)) is None, step


def test_a_terminal_sees_the_verdict_in_colour_and_what_to_do_next(hard, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    text = "\n".join(_terminal.lines(hard, "determinax estimate a.npy"))
    assert "\x1b[1;31m[unreliable]\x1b[0m" in text
    assert "determinax estimate a.npy --method vde" in text
    monkeypatch.setenv("NO_COLOR", "1")
    plain = _terminal.lines(hard, "x")
    assert "\x1b" not in "".join(plain)
    assert max(map(len, plain)) <= 90


def test_ticks_are_round_and_within():
    for span in (Span(0, 1), Span(-3.2e-7, 1.1e-6), Span(1e5, 3e7), Span(5.999999, 6.000001)):
        found = [at for at, _ in ticks(span, 5)]
        assert 2 <= len(found) <= 8
        assert all(span.low <= at <= span.high for at in found)
    assert [words for _, words in ticks(Span(0, 3), 9, log=True)] == ["1", "10", "100", "1,000"]


@pytest.mark.parametrize("centre", [-9.21034037, 5.0, 1234567.5, 1e-3])
@pytest.mark.parametrize("length", [1e-12, 1e-8, 1e-5, 1e-2, 1.0])
def test_ticks_of_values_that_agree_are_told_apart(centre, length):
    length *= max(abs(centre), 1)
    board = Board(Span(centre, centre + length), Span(centre, centre + length), (880, 300))
    for draw in (board.axis_x, board.axis_y):
        board.parts.clear()
        draw("nats")
        words = re.findall("<text[^>]*>([^<]*)</text>", "".join(board.parts))
        numbers = [word for word in words if not word.startswith("nats")]
        assert len(set(numbers)) == len(numbers) >= 2, words
        assert max(map(len, numbers)) <= 10


def test_a_fit_in_a_notebook_is_a_curve():
    flow = dx.flows.projective_linear(12)
    fit = dx.fit(A, flow, key=KEY, steps=4, batch_size=32, progress=False)
    assert "<svg" in fit._repr_html_()
    assert "products" in fit._repr_html_()
    short = dx.fit_linear(A, key=KEY)  # two steps are no line
    assert "<svg" not in short._repr_html_()
    assert "loss, nats" in short._repr_html_()


def test_equal_weights_are_a_sentence_and_no_figures(tmp_path):
    fit = dx.fit_linear(A, key=KEY)
    found = dx.log_abs_det(A, dx.Variational(fit.proposal, 200), key=KEY, trace=True)
    points = found.trace.histogram
    same = eqx.tree_at(lambda h: h.high, points, points.low + 1e-14)
    trace = eqx.tree_at(lambda t: t.histogram, found.trace, same)
    found.replace(trace=trace, code=jnp.asarray(1)).report(tmp_path / "a.html")
    said = words(tmp_path / "a.html")
    assert re.search("All log-weights are equal to [0-9]e-1[0-9].", said)
    assert (tmp_path / "a.html").read_text().count("<svg") == 2  # the axis


def test_an_unreliable_estimate_has_no_interval_and_far_bounds_are_arrows(hard, estimate):
    page = _figures.interval(hard, None)
    assert "estimate; no interval: unreliable" in page
    assert "95 % interval" not in page
    far = estimate.bounds.moved(jnp.asarray(1e6), 1.0)
    page = _figures.interval(estimate.replace(bounds=far), None)
    assert page.count("beyond") == 4  # the certificate and the KL bound, in both sizes
    assert "beyond" not in _figures.interval(estimate, None)


def test_the_law_that_fits_the_tail_goes_through_it_and_a_heavier_one_above():
    rarity = np.linspace(0, 2, 9)
    exceedances = (10 ** (0.4 * rarity) - 1) / 0.4 * 0.3
    above = np.log10(1 + 0.3 * (np.linspace(1e-3, 1, 999) ** -0.4 - 1) / 0.4)
    fitted = _figures.pareto(rarity, 0.4, 0.4, np.append(above, 0.0))
    np.testing.assert_allclose(fitted, np.log10(1 + exceedances), rtol=0.01, atol=1e-3)
    assert (_figures.pareto(rarity, 0.4, 0.7, np.append(above, 0.0))[1:] > fitted[1:]).all()


def test_the_lines_of_the_pictures_are_named(estimate):
    tail = _figures.tail(estimate)
    for words in ("fitted: k = ", "k = 0.5: warn above", "k = 0.7: unreliable above"):
        assert tail.count(words) == 2
    exact = float(estimate.log_abs_det)
    assert _figures.running(estimate, exact).count(">exact</text>") == 2


# -- from a shell --


def shell(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


def test_the_command_writes_a_page_whatever_the_file_is_called(tmp_path):
    file = tmp_path / "<script>alert(1)<\u2215script>&.npy"
    np.save(file, np.diag([3.0, 1.0, 0.5]))
    ended = shell("report", file, "--method", "vde", "--exact", "--out", tmp_path / "a.html")
    assert ended.exit_code == 0, ended.output
    assert "written to" in ended.output
    said, page = words(tmp_path / "a.html"), (tmp_path / "a.html").read_text()
    assert "exact" in said
    assert "the best density" in said
    assert "the fitted one" in said
    assert page.count("<script>alert") == 0
    assert "alert(1)" in said


def cure_of(path):
    """The command on a page, as words."""
    (command,) = re.findall('<pre id="cure">(.*?)</pre>', path.read_text(), re.DOTALL)
    return shlex.split(html.unescape(command))[1:]


def test_the_cure_on_the_page_keeps_the_options_and_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tall = RNG.standard_normal((14, 6)) * [1, 1, 1, 1, 1, 1e-3]
    text = "\n".join(",".join(map(str, row)) for row in tall)
    (tmp_path / "tall.csv").write_text(f"made by hand\na,b,c,d,e,f\n{text}\n")
    kept = ["--header", "--skip-rows", "1", "--volume", "--tolerance", "0.5", "--seed", "7"]
    ended = shell("report", "tall.csv", "--method", "mc", *kept, "--out", "a.html")
    assert ended.exit_code == 3, ended.output
    words = cure_of(tmp_path / "a.html")
    assert set(kept) <= set(words)
    again = shell(*words, "--json")
    assert again.exit_code == 0, again.output
    found = json.loads(again.output)
    assert (found["status"], found["seed"], found["bar"]) == ("exact", 7, 0.5)
    truth = np.linalg.slogdet(tall.T @ tall)[1] / 2
    assert abs(found["log_abs_det"] - truth) < 1e-6


def test_the_cure_drops_what_its_method_does_not_take(tmp_path):
    np.save(tmp_path / "a.npy", A)
    few = ["--method", "vde", "--max-matvecs", "8", "--samples", "50", "--frames", "--spd"]
    spd = A @ A.T
    np.save(tmp_path / "spd.npy", (spd + spd.T) / 2)
    for file, options in ((tmp_path / "spd.npy", few), (tmp_path / "a.npy", few[:-1])):
        shell("report", file, *options, "--out", tmp_path / "a.html")
        words = cure_of(tmp_path / "a.html")
        assert ("--spd" in words) == ("--spd" in options)
        assert words.count("--frames") == ("--samples" in words)
        again = shell(*words, "--json")
        assert again.exit_code == 0, (words, again.output)


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "a.npy", "--out", "a.npy"],
        ["report", "a.npy", "--out", "link.npy"],
        ["report", "a.npy", "--method", "vde", "--proposal", "q.st", "--out", "q.st"],
        ["fit", "a.npy", "--save", "./a.npy"],
        ["estimate", "a.npy", "--method", "mc", "--checkpoint", "a.npy"],
        ["density", "q.safetensors", "--save", "q.safetensors"],
        ["sample", "points.npy", "10", "--out", "points.npy"],
    ],
)
def test_what_is_read_is_never_written_over(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.npy", "q.st", "q.safetensors", "points.npy"):
        (tmp_path / name).write_bytes(before := A.tobytes())
    (tmp_path / "link.npy").symlink_to("a.npy")
    ended = shell(*arguments)
    assert ended.exit_code == 2, ended.output
    assert "is read, and would be written over: name another file" in ended.output
    assert all(file.read_bytes() == before for file in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["missing.npy"], "no such file"),
        (["bad.csv"], "row 2"),
        (["tall.csv"], "say --volume"),
        (["good.csv", "--depth", "3"], "--depth does not apply"),
        (["nan.csv"], "finite|NaN|not a number"),
    ],
)
def test_bad_input_is_one_sentence_and_no_file(arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "bad.csv": "1,2\n3\n",
        "tall.csv": "1,2\n3,4\n5,6\n",
        "good.csv": "1,2\n3,4\n",
        "nan.csv": "1,2\nnan,4\n",
    }.items():
        (tmp_path / name).write_text(text)
    before = set(tmp_path.iterdir())
    ended = shell("report", *arguments, "--out", "report.html")
    assert ended.exit_code == 2
    assert re.search(sentence, ended.output), ended.output
    assert len(ended.output.strip().splitlines()) == 1
    assert set(tmp_path.iterdir()) == before


def test_a_place_that_cannot_be_written_to_is_told_before_anything_is_read(tmp_path):
    ended = shell("report", "missing.npy", "--out", tmp_path / "no" / "a.html")
    assert ended.exit_code == 2
    assert "nothing can be written there" in ended.output
