"""Proposals on disk: what is saved comes back bit for bit, and nothing else comes in."""

import json
import os
import types

import damage
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flows.registry import REGISTRY

from determinax import flows, storage
from determinax.proposals import Proposal

KEY = jax.random.key(0)


def perturbed(flow):
    leaves, tree = jax.tree.flatten(flow)
    keys = jax.random.split(KEY, len(leaves))
    moved = [
        a + 0.1 * jax.random.normal(k, a.shape, a.dtype) if eqx.is_inexact_array(a) else a
        for a, k in zip(leaves, keys, strict=True)
    ]
    return tree.unflatten(moved)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, jnp.float32) for name in REGISTRY), ("projective-linear", jnp.float64)],
)
def test_every_map_comes_back_bit_for_bit(tmp_path, name, dtype):
    entry = REGISTRY[name]
    n = entry.dimensions[0]
    proposal = Proposal(perturbed(entry.make(n, KEY, dtype)))
    storage.save(proposal, tmp_path / "q.safetensors")
    back = storage.load(tmp_path / "q.safetensors")
    assert jax.tree.structure(back) == jax.tree.structure(proposal)
    for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(proposal), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.fixture
def stored(tmp_path):
    storage.save(Proposal(flows.projective_linear(3)), tmp_path / "q.safetensors")
    return tmp_path / "q.safetensors"


def rewrite(path, change):
    """Write the file anew with a changed header or changed tensors."""
    with safetensors.safe_open(path, framework="numpy") as file:
        header = dict(file.metadata())
        tensors = {name: file.get_tensor(name) for name in list(file.keys())}
    change(header, tensors)
    path.write_bytes(safetensors.numpy.save(tensors, metadata=header))


def test_the_header_is_readable_json(stored):
    raw = stored.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])["__metadata__"]
    assert header["format"] == "determinax.proposal"
    assert json.loads(header["architecture"])["class"] == "ProjectiveLinear"


def grow(header, tensors):
    tensors["flow.factor.below"] = np.zeros((4, 4))


def lie_about_the_checksum(header, tensors):
    grow(header, tensors)
    header["checksum"] = storage._checksum(json.loads(header["architecture"]), tensors)


def unknown_class(header, tensors):
    architecture = json.loads(header["architecture"])
    architecture["class"] = "Popen"
    header["architecture"] = json.dumps(architecture)
    header["checksum"] = storage._checksum(architecture, tensors)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda h, t: h.update(format="other"), "not a determinax proposal"),
        (lambda h, t: h.clear(), "not a determinax proposal"),
        (lambda h, t: h.update(format_version="2"), "format version 2"),
        (lambda h, t: h.pop("checksum"), "header is damaged"),
        (lambda h, t: h.update(architecture="{"), "header is damaged"),
        (lambda h, t: t["flow.factor.below"].__iadd__(1), "checksum does not match"),
        (grow, "checksum does not match"),
        (lie_about_the_checksum, "another shape or dtype"),
        (unknown_class, "architecture unknown here"),
    ],
)
def test_files_that_were_changed_are_refused(stored, change, sentence):
    rewrite(stored, change)
    with pytest.raises(storage.StorageError, match=sentence) as caught:
        storage.load(stored)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("keep", [0, 4, 20, -1, -40])
def test_truncated_files_are_refused(stored, keep):
    stored.write_bytes(stored.read_bytes()[:keep])
    with pytest.raises(storage.StorageError, match="truncated, corrupted"):
        storage.load(stored)


def test_a_flipped_bit_is_found(stored):
    data = bytearray(stored.read_bytes())
    data[-3] ^= 16
    stored.write_bytes(data)
    with pytest.raises(storage.StorageError, match="checksum"):
        storage.load(stored)


def test_foreign_and_missing_files(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(b"PK\x03\x04 something else entirely")
    with pytest.raises(storage.StorageError, match="not a safetensors file"):
        storage.load(tmp_path / "a.safetensors")
    with pytest.raises(storage.StorageError, match="no such file"):
        storage.load(tmp_path / "missing.safetensors")


def test_float64_needs_64_bits(stored):
    with jax.enable_x64(False), pytest.raises(storage.StorageError, match="jax_enable_x64"):
        storage.load(stored)


def test_writing_is_all_or_nothing(stored, monkeypatch):
    before = stored.read_bytes()

    def crash(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(storage.StorageError, match="cannot be written: disk full"):
        storage.save(Proposal(flows.projective_linear(5)), stored)
    assert stored.read_bytes() == before
    assert [p.name for p in stored.parent.iterdir()] == [stored.name]


def test_pipes_and_devices_stay_what_they_are(tmp_path):
    """Saved to as root, /dev/full became a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(storage.StorageError, match="cannot be written: it is no ordinary file"):
        storage.save(Proposal(flows.projective_linear(5)), pipe)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_link_leads_to_what_is_saved(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    link, target = tmp_path / "q", tmp_path / "elsewhere" / "q"
    link.symlink_to(target)
    for _ in range(2):
        storage.save(Proposal(flows.projective_linear(5)), link)
    assert link.is_symlink()
    assert target.is_file()
    assert storage.load(link).n == 5


class Foreign(flows.AbstractSphereMap):
    n: int = 3
    context_size: int = 0

    def _forward(self, s, context):
        return s, jnp.zeros(s.shape[1:])

    def _inverse(self, s, context):
        return s, jnp.zeros(s.shape[1:])


def test_maps_from_elsewhere_cannot_be_stored(tmp_path):
    with pytest.raises(storage.StorageError, match="only maps and densities of determinax"):
        storage.save(Proposal(Foreign()), tmp_path / "q.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("value", "cure"),
    [
        (flows.projective_linear(3), r"save\(Proposal\(flow\), path\)"),
        (
            types.SimpleNamespace(proposal=Proposal(flows.projective_linear(3))),
            r"save its \.proposal",
        ),
        (np.eye(3), "only a density such as determinax.Proposal"),
    ],
    ids=["flow", "fit", "array"],
)
def test_only_proposals_are_saved_and_others_are_told_how(tmp_path, value, cure):
    with pytest.raises(storage.StorageError, match=f"is not a proposal: {cure}"):
        storage.save(value, tmp_path / "q.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["proposal", "checkpoint"])
def test_broken_files_give_the_truth_or_one_sentence(tmp_path, kind):
    """A checkpoint that is damaged is passed over, for the one before it if there is one."""
    broken = damage.Files(tmp_path, seed=0)
    readable = sum(broken.check(kind, number) for number in range(200))
    assert 5 < readable < 190


def test_a_checkpoint_whose_run_is_damaged_is_not_taken_for_another_runs(tmp_path):
    last, before = damage.good_checkpoints()
    (tmp_path / "c").write_bytes(last.replace(damage.RUN.encode(), b"e" + damage.RUN[1:].encode()))
    (tmp_path / "c.previous").write_bytes(before)
    assert damage.check_checkpoint(tmp_path / "c")
