//! Messages in source: string literals of logs, errors, expectations, output and help.

use proc_macro2::{Delimiter, Literal, TokenStream, TokenTree};

/// Macros with a message.
const MACROS: [&str; 18] = [
    "anyhow",
    "bail",
    "debug",
    "eprint",
    "eprintln",
    "error",
    "format",
    "info",
    "panic",
    "print",
    "println",
    "todo",
    "trace",
    "unimplemented",
    "unreachable",
    "warn",
    "write",
    "writeln",
];

/// Macros with a message behind a condition or values: their number.
const ASSERTIONS: [(&str, usize); 9] = [
    ("assert", 1),
    ("assert_eq", 2),
    ("assert_ne", 2),
    ("debug_assert", 1),
    ("debug_assert_eq", 2),
    ("debug_assert_ne", 2),
    ("ensure", 1),
    ("prop_assert", 1),
    ("prop_assert_eq", 2),
];

/// Methods with a message.
const METHODS: [&str; 9] =
    ["about", "after_help", "context", "expect", "expect_err", "help", "long_about", "long_help", "with_context"];

/// Attributes with a help text or a reason, and their keys with one.
const WITH_HELP: [&str; 7] = ["allow", "arg", "cfg_attr", "clap", "command", "expect", "value"];
const HELP: [&str; 8] =
    ["about", "after_help", "after_long_help", "before_help", "help", "long_about", "long_help", "reason"];

/// Texts of all messages of a file, as they are written; none of a file that is not valid Rust.
pub(crate) fn messages(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    if let Ok(tokens) = text.parse() {
        add_messages(tokens, &mut found);
    }
    found
}

fn add_messages(tokens: TokenStream, found: &mut Vec<String>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    found.extend(tokens.windows(2).enumerate().filter_map(|(at, pair)| constant(pair, &tokens[at + 2..])));
    for (at, token) in tokens.iter().enumerate() {
        let TokenTree::Group(group) = token else { continue };
        match (&tokens[..at], group.delimiter()) {
            ([.., TokenTree::Ident(name), TokenTree::Punct(mark)], _)
                if mark.as_char() == '!' && MACROS.contains(&&*name.to_string()) =>
            {
                add_literals(group.stream(), found);
            }
            ([.., TokenTree::Ident(name), TokenTree::Punct(mark)], _)
                if mark.as_char() == '!'
                    && let Some((_, values)) = ASSERTIONS.iter().find(|(assertion, _)| name == assertion) =>
            {
                let (values, message) = split_arguments(group.stream(), *values);
                add_messages(values, found);
                add_literals(message, found);
            }
            ([.., TokenTree::Punct(dot), TokenTree::Ident(name)], Delimiter::Parenthesis)
                if dot.as_char() == '.' && METHODS.contains(&&*name.to_string()) =>
            {
                add_literals(group.stream(), found);
            }
            ([.., TokenTree::Punct(mark)], Delimiter::Bracket)
                if mark.as_char() == '#' || at > 1 && mark.as_char() == '!' && tokens[at - 2].to_string() == "#" =>
            {
                let mut attribute = group.stream().into_iter();
                let name = attribute.next().map_or(String::new(), |name| name.to_string());
                if name == "error" {
                    add_literals(attribute.collect(), found);
                } else if let Some(TokenTree::Group(list)) = attribute.next()
                    && WITH_HELP.contains(&&*name)
                {
                    add_help(list.stream(), found);
                }
            }
            _ => add_messages(group.stream(), found),
        }
    }
}

/// The text of `const NAME: &str = "text";`, or of such a static.
fn constant(beginning: &[TokenTree], rest: &[TokenTree]) -> Option<String> {
    let [TokenTree::Ident(keyword), TokenTree::Ident(_)] = beginning else { return None };
    if keyword != "const" && keyword != "static" {
        return None;
    }
    let equals = rest
        .iter()
        .position(|token| matches!(token, TokenTree::Punct(mark) if ['=', ';'].contains(&mark.as_char())))?;
    let is_text = matches!(equals.checked_sub(1).map(|at| &rest[at]), Some(TokenTree::Ident(name)) if name == "str");
    match rest.get(equals + 1)? {
        TokenTree::Literal(literal) if is_text => string(literal),
        _ => None,
    }
}

/// The first arguments of a macro, and those behind them.
fn split_arguments(tokens: TokenStream, number: usize) -> (TokenStream, TokenStream) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let is_comma = |token: &TokenTree| matches!(token, TokenTree::Punct(mark) if mark.as_char() == ',');
    let mut commas = (0..tokens.len()).filter(|at| is_comma(&tokens[*at]));
    let end = commas.nth(number - 1).unwrap_or(tokens.len());
    let (first, others) = tokens.split_at(end);
    (first.iter().cloned().collect(), others.iter().cloned().collect())
}

/// Help texts of an attribute: `help = "text"`.
fn add_help(tokens: TokenStream, found: &mut Vec<String>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for token in &tokens {
        if let TokenTree::Group(group) = token {
            add_help(group.stream(), found);
        }
    }
    for triple in tokens.windows(3) {
        if let [TokenTree::Ident(key), TokenTree::Punct(mark), TokenTree::Literal(text)] = triple
            && mark.as_char() == '='
            && HELP.contains(&&*key.to_string())
        {
            found.extend(string(text));
        }
    }
}

/// String literals among tokens, those of inner groups included.
fn add_literals(tokens: TokenStream, found: &mut Vec<String>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => add_literals(group.stream(), found),
            TokenTree::Literal(literal) => found.extend(string(&literal)),
            _ => {}
        }
    }
}

fn string(literal: &Literal) -> Option<String> {
    let text = literal.to_string();
    let text = text.trim_start_matches('r').trim_matches('#');
    Some(text.strip_prefix('"')?.strip_suffix('"')?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_contexts_and_help_are_messages() {
        let text = r#"
            #[command(about = "one", name = "no")] struct C { #[arg(long, help = "two", value_name = "no")] a: u8 }
            fn f() { eprintln!("three"); a.with_context(|| format!("four")).context(format!("five"))?; println!("six"); c.help("seven") }"#;
        assert_eq!(messages(text), ["one", "two", "three", "four", "five", "six", "seven"]);
    }

    #[test]
    fn reasons_of_levels_are_messages() {
        let text = r#"#![expect(a, reason = "one")] #[allow(b, reason = "two")] #[cfg_attr(test, expect(c, reason = "three"))]
            fn f() { reason = "no"; vec!["no"]; }"#;
        assert_eq!(messages(text), ["one", "two", "three"]);
    }

    #[test]
    fn written_and_constant_texts_are_messages() {
        let text = r#"
            const ONE: &str = "one"; static TWO: &'static str = "two"; const NO: [&str; 1] = ["no"]; const B: &[u8] = b"no";
            impl X { fn f(&self) { let a = "no"; write!(f, "three {a}")?; writeln!(f, "four"); a(format!("five")); } }"#;
        assert_eq!(messages(text), ["one", "two", "three {a}", "four", "five"]);
    }

    #[test]
    fn logs_errors_and_expectations_are_messages_and_other_strings_are_none() {
        let text = r##"
            #[derive(Error)] enum E { #[error("one {0}", hint("two"))] A, #[doc = "no"] B }
            fn f() -> Result<()> {
                info!(qpn = %qpn, "three");
                if tracing::warn!("four") { x.expect("five"); }
                assert!(y.z("no", "no").expect(r#"six"#) == "no", "seven");
                ensure!(a == "no", "eight");
                assert_eq!(a, f("no", 1), "nine {}", g("ten"));
                if debug_assert_ne!("no", "no") { prop_assert!(["no", "no"] == a) }
                expect("no");
            }"##;
        assert_eq!(
            messages(text),
            ["one {0}", "two", "three", "four", "five", "six", "seven", "eight", "nine {}", "ten"]
        );
        assert_eq!(messages("fn {"), [""; 0]);
    }
}
