"""What follows from types and shapes is asked once, and keeps nothing alive."""

import gc
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from determinax._shapes import by_shapes


class Box(eqx.Module):
    array: object
    tag: str = eqx.field(static=True, default="")


def counted():
    asked = []

    @by_shapes
    def question(box):
        asked.append(box)
        return box.array.shape, box.array.dtype, box.tag

    return question, asked


def test_it_is_asked_once_of_each_shape_dtype_and_setting():
    question, asked = counted()
    for _ in range(2):
        assert question(Box(np.zeros(3))) == ((3,), np.float64, "")
        assert question(Box(np.ones(4))) == ((4,), np.float64, "")
        assert question(Box(np.zeros(3, np.float32))) == ((3,), np.float32, "")
        assert question(Box(np.zeros(3), "x")) == ((3,), np.float64, "x")
    assert len(asked) == 4


def test_inside_of_jit_it_gives_the_same_answer():
    question, asked = counted()
    question(Box(jnp.zeros(3)))
    jax.jit(lambda a: jnp.zeros(question(Box(a))[0]))(jnp.ones(3))
    assert len(asked) == 1


def test_no_array_is_kept_alive():
    question, _ = counted()
    array = np.zeros(3)
    kept = weakref.ref(array)
    question(Box(array))
    del array
    gc.collect()
    assert kept() is None


def test_what_is_raised_is_raised_again():
    asked = []

    @by_shapes
    def refuse(array):
        asked.append(array)
        raise ValueError("too long")

    for _ in range(2):
        with pytest.raises(ValueError, match="too long"):
            refuse(np.zeros(3))
    assert len(asked) >= 2


def test_what_cannot_be_hashed_is_asked_anew():
    @by_shapes
    def kind(leaf):
        return type(leaf)

    assert kind(bytearray(b"x")) is bytearray
