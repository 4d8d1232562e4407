//! Messages in source: string literals of logs, errors and expectations.

use proc_macro2::{Delimiter, Literal, TokenStream, TokenTree};

/// Macros with a message.
const MACROS: [&str; 9] = ["anyhow", "bail", "debug", "ensure", "error", "info", "panic", "trace", "warn"];

/// Methods with a message.
const METHODS: [&str; 3] = ["context", "expect", "expect_err"];

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
    for (at, token) in tokens.iter().enumerate() {
        let TokenTree::Group(group) = token else { continue };
        match (&tokens[..at], group.delimiter()) {
            ([.., TokenTree::Ident(name), TokenTree::Punct(mark)], _)
                if mark.as_char() == '!' && MACROS.contains(&&*name.to_string()) =>
            {
                add_literals(group.stream(), found);
            }
            ([.., TokenTree::Punct(dot), TokenTree::Ident(name)], Delimiter::Parenthesis)
                if dot.as_char() == '.' && METHODS.contains(&&*name.to_string()) =>
            {
                add_literals(group.stream(), found);
            }
            ([.., TokenTree::Punct(hash)], Delimiter::Bracket) if hash.as_char() == '#' => {
                let mut attribute = group.stream().into_iter();
                if attribute.next().is_some_and(|name| name.to_string() == "error") {
                    add_literals(attribute.collect(), found);
                }
            }
            _ => add_messages(group.stream(), found),
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
    fn logs_errors_and_expectations_are_messages_and_other_strings_are_none() {
        let text = r##"
            #[derive(Error)] enum E { #[error("one {0}", hint("two"))] A, #[doc = "no"] B }
            fn f() -> Result<()> {
                info!(qpn = %qpn, "three");
                if tracing::warn!("four") { x.expect("five"); }
                assert!(y.z().expect(r#"six"#), "no");
                print!("no");
                ensure!(a == "seven", "eight");
                expect("no");
            }"##;
        assert_eq!(messages(text), ["one {0}", "two", "three", "four", "five", "six", "seven", "eight"]);
        assert_eq!(messages("fn {"), [""; 0]);
    }
}
