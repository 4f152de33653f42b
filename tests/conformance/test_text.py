"""The format of conversations: what each line means, and the complaint about a line that means nothing."""

import pytest

from conformance import text
from conformance.conversation import FormatError, read


@pytest.mark.parametrize(
    ("source", "data"),
    [
        ("put 0 0 60 5", b"put 0 0 60 5"),
        ("\\r\\n\\t\\0\\s\\\\\\{\\x1f", b"\r\n\t\0 \\{\x1f"),
        ("{3 * ab}", b"ababab"),
        ("{2 * a{2 * b}\\r\\n}", b"abb\r\nabb\r\n"),
        ("{every byte}", bytes(range(256))),
        ("delete {job} {job+2}", b"delete 7 9"),
        ("ä", "ä".encode()),
    ],
)
def test_a_text_is_sent_as_these_bytes(source, data):
    assert text.read(source)[0].render({"job": 7}) == data


def test_a_line_end_can_be_left_out():
    assert text.read("abc")[1]
    said, ends = text.read("abc\\c")
    assert (said.render({}), ends) == (b"abc", False)


@pytest.mark.parametrize(
    ("source", "came", "kept"),
    [
        ("INSERTED {a}", b"INSERTED 12", {"a": 12}),
        ("INSERTED {a}", b"INSERTED x", None),
        ("INSERTED {job}", b"INSERTED 7", {}),
        ("INSERTED {job}", b"INSERTED 8", None),
        ("INSERTED {job+1}", b"INSERTED 8", {}),
        ("{a} {a}", b"3 3", {"a": 3}),
        ("{a} {a}", b"3 4", None),
        ("age: {0..2}", b"age: 2", {}),
        ("age: {0..2}", b"age: 3", None),
        ("{float}", b"0.25", {}),
        ("{float}", b"025", None),
        ("{word} {text}", b"a b c", {}),
        ("{2 * {n}\\n}", b"1\n22\n", {}),
        ("a.c", b"abc", None),
        ('name: {"a"}', b'name: "a"', {}),
        ('name: {"a"}', b"name: a", None),
    ],
)
def test_a_text_expects_these_bytes(source, came, kept):
    assert text.read(source)[0].match(came, {"job": 7}, quotes=True) == kept


def test_a_quoted_text_matches_an_old_beanstalkd_without_quotes():
    assert text.read('name: {"a"}')[0].match(b"name: a", {}, quotes=False) == {}


@pytest.mark.parametrize("data", [b"", b"plain", b"a\r\nb", b"{a}", b"back\\slash", b"\0\x7f\xff", b"end ", bytes(256)])
def test_bytes_are_written_as_they_are_read(data):
    assert text.read(text.write(data))[0].render({}) == data


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ("> put", "a file must begin with a title line"),
        ("== a\n>put", "invalid line"),
        ("== a\n> {", "unclosed {"),
        ("== a\n> {what now}", "no such placeholder"),
        ("== a\n> \\q", "no such escape"),
        ("== a\n> put", "the conversation expects nothing"),
        ("== a\n[ours] < OK", "require each other"),
        ("== a\nonly: ours\n< OK", "require each other"),
        ("== a\ndiffers: something\n< OK", "require each other"),
        ("== a\nonly: another\n< OK", "only: must be one of ours, beanstalkd"),
        ("== a\nsignal USR1\n< OK", "needs a server of its own"),
        ("== a\nis noisy", "invalid line"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_its_line(lines, complaint):
    with pytest.raises(FormatError, match=r"name.txt:\d: .*" + complaint.replace("{", r"\{")):
        list(read(lines, "name.txt"))


def test_a_number_that_no_reply_has_set_is_an_error():
    with pytest.raises(text.TextError, match="no reply has set it"):
        text.read("delete {job}")[0].render({})
    with pytest.raises(text.TextError, match="no reply has set job"):
        text.read("INSERTED {job+1}")[0].match(b"INSERTED 1", {}, quotes=True)
