"""Stop strings in pieces: whatever the pieces, what comes out is what one look at the whole text gives."""

from hypothesis import given
from hypothesis import strategies as st

from fasttrack_validation.generation.stops import Stops

short = st.text("abc", min_size=1, max_size=3)


def whole(text: str, stops: list[str], keep: bool) -> tuple[str, str | None]:
    """The first place at which a stop string is complete ends the reading; by definition."""
    for end in range(len(text) + 1):
        met = [stop for stop in stops if text[:end].endswith(stop)]
        if met:
            stop = max(met, key=len)
            return text[: end if keep else end - len(stop)], stop
    return text, None


@given(st.lists(st.text("abc", max_size=4), max_size=12), st.lists(short, max_size=4), st.booleans())
def test_single_characters_agree_with_the_definition(pieces, stops, keep):
    text, reader, out = "".join(pieces), Stops(stops, keep=keep), ""
    expected = whole(text, stops, keep)
    for character in text:
        given_out, met = reader.feed(character)
        out += given_out
        if met:
            assert (out, met) == expected
            return
    assert (out + reader.flush(), None) == expected


@given(st.lists(st.text("abc", min_size=1, max_size=4), max_size=12), st.lists(short, max_size=4))
def test_no_stop_string_leaks_whatever_the_pieces(pieces, stops):
    reader, out, text = Stops(stops), "", "".join(pieces)
    for piece in pieces:
        given_out, met = reader.feed(piece)
        out += given_out
        assert text.startswith(out) and not any(stop in out for stop in stops)
        if met:
            assert text[len(out) :].startswith(met)
            return
    assert out + reader.flush() == text


def test_a_beginning_is_held_back_and_given_out_in_the_end():
    reader = Stops(["STOP"])
    assert reader.feed("a ST") == ("a ", None)
    assert reader.feed("AR ST") == ("STAR ", None)
    assert reader.flush() == "ST"
