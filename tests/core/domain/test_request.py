"""What a user may ask for, field by field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vflash.domain.request import Mode, Reference, ReferenceKind, VideoRequest, check_labels, reference
from vflash_ports.errors import ContractError

PICTURE, VIDEO, AUDIO = ReferenceKind


def refs(pictures: int = 0, videos: int = 0, audios: int = 0) -> list[str]:
    counts = {"picture": pictures, "video": videos, "audio": audios}
    return [f"{kind}:{kind}{i}" for kind, count in counts.items() for i in range(count)]


def test_defaults():
    """A prompt is enough: five seconds, the profile's or fifty evaluations, seed 0, the model's own canvas, text."""
    request = VideoRequest(prompt="rain")
    assert (request.duration_s, request.steps, request.seed) == (5, None, 0)
    assert request.width is request.height is request.save_latents is None
    assert request.mode is Mode.T2VA
    assert request.inputs == ()


@pytest.mark.parametrize("prompt", ["", "   ", "\n\t", None, 5, b"rain", ["rain"]])
def test_a_prompt_is_a_text_that_is_not_blank(prompt):
    """Blank and other types are refused."""
    with pytest.raises(ContractError, match=r"^prompt: must be a text that is not blank"):
        VideoRequest(prompt=prompt)


def test_a_prompt_is_used_verbatim_up_to_its_limit():
    """Outer spaces stay; 65,536 characters are taken, one more is not."""
    assert VideoRequest(prompt="  rain \n").prompt == "  rain \n"
    assert len(VideoRequest(prompt="x" * 65_536).prompt) == 65_536
    with pytest.raises(ContractError, match=r"^prompt: has 65537 characters; at most 65536"):
        VideoRequest(prompt="x" * 65_537)


def test_a_prompt_is_valid_unicode():
    """Bytes that are not UTF-8 reach Python's arguments as lone surrogates, which no tokenizer can read."""
    with pytest.raises(ContractError, match=r"^prompt: character 5 is not valid Unicode"):
        VideoRequest(prompt=b"rain\xff".decode("utf-8", "surrogateescape"))
    assert VideoRequest(prompt="雨 🌧").prompt == "雨 🌧"


LIMITS = {"duration_s": (5, 15), "steps": (1, 1000), "seed": (0, 2**63 - 1)}


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_numbers_have_inclusive_limits(name):
    """Both ends are legal, one beyond is not, and the message names field, range and value."""
    low, high = LIMITS[name]
    for value in (low, high):
        assert getattr(VideoRequest(prompt="rain", **{name: value}), name) == value
    for value in (low - 1, high + 1):
        with pytest.raises(ContractError, match=f"^{name} must be between {low} and {high}, got {value}$"):
            VideoRequest(prompt="rain", **{name: value})


@pytest.mark.parametrize("name", [*sorted(LIMITS), "width", "height"])
@pytest.mark.parametrize("value", [True, 5.0, "5", [5]])
def test_numbers_are_never_converted(name, value):
    """A bool, a float and a text are refused for every numeric field."""
    with pytest.raises(ContractError, match=f"^{name} must be a whole number, got"):
        VideoRequest(prompt="rain", **{name: value})


@pytest.mark.parametrize("name", ["duration_s", "seed"])
def test_numbers_with_a_default_are_not_none(name):
    """None is not another word for the default."""
    with pytest.raises(ContractError, match=f"{name} must be a whole number, got None"):
        VideoRequest(prompt="rain", **{name: None})


def test_width_and_height_come_together():
    """One alone would leave the canvas half said."""
    assert VideoRequest(prompt="rain", width=64, height=96).height == 96
    for sizes in ({"width": 64}, {"height": 64}):
        with pytest.raises(ContractError, match="width and height must be given together"):
            VideoRequest(prompt="rain", **sizes)
    for sizes in ({"width": 0, "height": 64}, {"width": 64, "height": 65_537}):
        with pytest.raises(ContractError, match="must be between 1 and 65536"):
            VideoRequest(prompt="rain", **sizes)


def test_an_unknown_field_is_an_error():
    """Nothing that is given is ignored."""
    with pytest.raises(TypeError, match="num_frames"):
        VideoRequest(prompt="rain", num_frames=124)


@pytest.mark.parametrize(
    ("given_inputs", "mode", "inputs"),
    [
        ({}, Mode.T2VA, []),
        ({"first_frame": "a.png"}, Mode.I2VA, ["a.png"]),
        ({"last_frame": "b.png"}, Mode.L2VA, ["b.png"]),
        ({"last_frame": "b.png", "first_frame": "a.png"}, Mode.FL2VA, ["a.png", "b.png"]),
        ({"references": ["c.png", "d.wav"]}, Mode.REF2VA, ["c.png", "d.wav"]),
    ],
)
def test_the_mode_follows_from_what_is_given(given_inputs, mode, inputs):
    """And inputs are listed in packed order, whatever the order of the keywords."""
    request = VideoRequest(prompt="rain", **given_inputs)
    assert request.mode is mode
    assert request.inputs == tuple(Path(path) for path in inputs)


@pytest.mark.parametrize("name", ["first_frame", "last_frame", "save_latents"])
@pytest.mark.parametrize("value", ["", 5, b"a.png", ["a.png"]])
def test_paths_are_texts_or_paths(name, value):
    """An empty text would mean the working folder; the message names the field."""
    with pytest.raises(ContractError, match=f"^{name}: expected a path, got"):
        VideoRequest(prompt="rain", **{name: value})


@pytest.mark.parametrize("name", ["first_frame", "last_frame"])
def test_keyframes_and_references_exclude_each_other(name):
    """One kind of input only."""
    with pytest.raises(ContractError, match="references cannot be combined with first_frame or last_frame"):
        VideoRequest(prompt="rain", references=["a.png"], **{name: "b.png"})


@pytest.mark.parametrize(
    ("text", "kind", "path"),
    [
        ("a.png", PICTURE, "a.png"),
        ("a.JPEG", PICTURE, "a.JPEG"),
        ("b.webm", VIDEO, "b.webm"),
        ("c.flac", AUDIO, "c.flac"),
        ("audio:b.mp4", AUDIO, "b.mp4"),
        ("picture:noname", PICTURE, "noname"),
        ("video:a:b", VIDEO, "a:b"),
        ("odd:name.png", PICTURE, "odd:name.png"),
    ],
)
def test_references_say_or_show_what_they_are(text, kind, path):
    """A prefix decides; without one the suffix does, in any case; other colons belong to the name."""
    assert reference(text) == Reference(kind=kind, path=Path(path))
    assert reference(reference(text)) == reference(text)


def test_a_path_object_is_a_reference_too():
    """Not only texts."""
    assert reference(Path("x/a.png")) == Reference(kind=PICTURE, path=Path("x/a.png"))


@pytest.mark.parametrize("value", ["noname", "a.txt", "picture:", "image:a"])
def test_an_unclear_reference_is_refused_with_the_cure(value):
    """The message shows the three prefixes."""
    with pytest.raises(
        ContractError, match=f"^references: cannot tell what reference '{value}' is; say picture:{value}"
    ):
        VideoRequest(prompt="rain", references=[value])


@pytest.mark.parametrize("value", ["a.png", Path("a.png"), {"a.png"}, 5, None])
def test_references_are_an_ordered_list(value):
    """A single text would be read letter by letter, a set has no order."""
    with pytest.raises(ContractError, match=r"^references: must be a list of paths in order"):
        VideoRequest(prompt="rain", references=value)


@pytest.mark.parametrize("value", ["", 5, None])
def test_a_reference_is_a_path(value):
    """Anything else inside the list is refused."""
    with pytest.raises(ContractError, match=r"^references: a reference must be a path or a Reference"):
        VideoRequest(prompt="rain", references=[value])


@pytest.mark.parametrize(
    "counts", [{"pictures": 9}, {"videos": 3}, {"pictures": 6, "videos": 3, "audios": 3}, {"videos": 1, "audios": 3}]
)
def test_reference_counts_up_to_the_limits(counts):
    """Nine pictures, three videos, three sounds, twelve in all."""
    assert len(VideoRequest(prompt="rain", references=refs(**counts)).references) == sum(counts.values())


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"pictures": 10}, "at most 9 picture references are taken, got 10"),
        ({"videos": 4}, "at most 3 video references are taken, got 4"),
        ({"pictures": 1, "audios": 4}, "at most 3 audio references are taken, got 4"),
        ({"pictures": 7, "videos": 3, "audios": 3}, "at most 12 references are taken in total, got 13"),
        ({"audios": 1}, "an audio reference needs at least one picture or video"),
    ],
)
def test_reference_counts_beyond_are_refused(counts, message):
    """Each limit has a message of its own."""
    with pytest.raises(ContractError, match=message):
        VideoRequest(prompt="rain", references=refs(**counts))


def test_references_keep_their_order():
    """Order is part of the request."""
    given_order = ["audio:z", "b.png", "video:a", "a.png"]
    request = VideoRequest(prompt="rain", references=given_order)
    assert [str(item.path) for item in request.references] == ["z", "b.png", "a", "a.png"]


@pytest.mark.parametrize(
    ("prompt", "inputs"),
    [
        ("<Picture 1>", {"first_frame": "a.png"}),
        ("<Picture 1> and <Picture 2>", {"first_frame": "a.png", "last_frame": "b.png"}),
        ("<Picture 1>", {"last_frame": "b.png"}),
        ("<Picture 2> <Video 1> <Audio 1>", {"references": refs(2, 1, 1)}),
        ("a < b > c <Picture> <3>", {}),
    ],
)
def test_labels_that_name_an_input_are_legal(prompt, inputs):
    """Both keyframes count as pictures; a last frame alone is Picture 1."""
    assert VideoRequest(prompt=prompt, **inputs).prompt == prompt


@pytest.mark.parametrize(
    ("prompt", "inputs", "message"),
    [
        ("<Picture 1>", {}, "names <Picture 1> but no such input"),
        ("<Picture 2>", {"first_frame": "a.png"}, "names <Picture 2> but 1 such input"),
        ("<Picture 0>", {"first_frame": "a.png"}, "names <Picture 0>"),
        ("<Video 1>", {"references": refs(1)}, "names <Video 1> but no such input"),
        ("<Video 2>", {"references": refs(0, 1)}, "names <Video 2> but 1 such input"),
        ("<Video1>", {"references": refs(0, 1)}, "says '<Video1>'; the model reads '<Video 1>'"),
        ("<video 1>", {"references": refs(0, 1)}, "says '<video 1>'; the model reads '<Video 1>'"),
        ("<Image 1>", {"references": refs(1)}, "says '<Image 1>'; the model reads '<Picture 1>'"),
        ("<Picture 01>", {"references": refs(1)}, "says '<Picture 01>'; the model reads '<Picture 1>'"),
        ("< Picture 1 >", {"references": refs(1)}, "the model reads '<Picture 1>'"),
        ("<audio 1>", {"references": refs(1, 0, 1)}, "the model reads '<Audio 1>'"),
    ],
)
def test_labels_that_name_nothing_are_refused(prompt, inputs, message):
    """A label without its input, and a label spelt otherwise than the model reads it."""
    with pytest.raises(ContractError, match=message):
        VideoRequest(prompt=prompt, **inputs)


def test_sound_labels_wait_for_the_videos_to_be_opened():
    """A video may have a soundtrack: whether <Audio 2> exists is known only when it has been read."""
    assert VideoRequest(prompt="<Audio 2>", references=refs(0, 2, 0))
    check_labels("<Audio 2>", pictures=0, videos=2, audios=2)
    with pytest.raises(ContractError, match="names <Audio 2> but 1 such input"):
        check_labels("<Audio 2>", pictures=0, videos=2, audios=1)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 9), st.integers(0, 3), st.integers(0, 3), st.integers(1, 12))
def test_exactly_the_given_labels_are_legal(pictures, videos, audios, number):
    """A number is legal for a kind if and only if that many were given."""
    for name, count in (("Picture", pictures), ("Video", videos), ("Audio", audios)):
        counts = {"pictures": pictures, "videos": videos, "audios": audios}
        if number <= count:
            check_labels(f"as <{name} {number}>", **counts)
        else:
            with pytest.raises(ContractError, match=f"<{name} {number}>"):
                check_labels(f"as <{name} {number}>", **counts)


@pytest.mark.parametrize(
    ("kind", "path", "told"),
    [
        ("vid", "a.mp4", "kind: 'vid' is not a ReferenceKind; choose one of picture"),
        ("video", 5, "path: expected a path"),
    ],
)
def test_a_reference_made_by_hand_is_checked_like_any_other(kind: Any, path: Any, told: str) -> None:
    """A misspelt kind or a path of the wrong type is told by its field's name."""
    with pytest.raises(ContractError, match=told):
        Reference(kind=kind, path=path)
