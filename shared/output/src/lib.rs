//! Text of programs on terminals and in logs.
//!
//! On the standard output an error of writing is an error of the program, and a reader that ends
//! early (`rocectl counters | head`) is none. Untrusted text (of a peer, a file) has no effect on a
//! terminal: it is escaped, and shortened.

use std::{
    fmt::Display,
    io::{self, ErrorKind, Write},
};

/// Most characters of a line of [`print_error`].
const LINE_CHARACTERS_MAX: usize = 2000;

/// Writes the text to the standard output, to the end. Nothing is added to it.
///
/// # Errors
/// When the output does not take it, such as a file on a full disk.
pub fn print(text: impl Display) -> io::Result<()> {
    print_to(&mut io::stdout().lock(), text)
}

/// Writes a line to the standard error, escaped and of a limited length. One that cannot be written
/// is dropped: a server with its log on a full disk serves on.
pub fn print_error(line: impl Display) {
    let line = escaped(&shortened(&line.to_string(), LINE_CHARACTERS_MAX)) + "\n";
    // No place is left to report it to.
    let _ = io::stderr().lock().write_all(line.as_bytes());
}

/// The text with escapes in place of the characters that move a cursor, change colors or the
/// direction of writing, begin a line, or are invisible.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' | '\'' | '\\' => shown.push(character),
            _ => shown.extend(character.escape_debug()),
        }
    }
    shown
}

/// The text, or its first characters and three dots if it has more than that.
#[must_use]
pub fn shortened(text: &str, characters_max: usize) -> String {
    match text.char_indices().nth(characters_max) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

fn print_to(output: &mut impl Write, text: impl Display) -> io::Result<()> {
    match write!(output, "{text}").and_then(|()| output.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(io::Error::new(error.kind(), format!("the standard output: {error}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An output that refuses to be flushed.
    struct Refusing(ErrorKind);

    impl Write for Refusing {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(self.0.into())
        }
    }

    #[test]
    fn text_arrives_as_it_is() {
        let mut output = Vec::new();
        print_to(&mut output, format_args!("{}\nb", 1)).expect("a vector takes everything");
        assert_eq!(output, b"1\nb");
    }

    #[test]
    fn untrusted_text_has_no_effect_on_a_terminal() {
        assert_eq!(escaped("a\u{1b}[2J\r\n\u{9b}\u{202e}\0"), r"a\u{1b}[2J\r\n\u{9b}\u{202e}\0");
        let plain = r#"ü "quoted" 'x' \ 你"#;
        assert_eq!(escaped(plain), plain);
        assert_eq!([shortened("äbc", 3), shortened("äbcd", 3)], ["äbc", "äbc..."]);
    }

    #[test]
    fn a_full_disk_is_an_error_and_a_closed_pipe_is_none() {
        let error = print_to(&mut Refusing(ErrorKind::StorageFull), "a").expect_err("it is full");
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        assert!(error.to_string().starts_with("the standard output: "), "{error}");
        print_to(&mut Refusing(ErrorKind::BrokenPipe), "a").expect("no error");
    }
}
