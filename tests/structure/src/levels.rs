//! Attributes that turn something off: levels of lints that the workspace sets, levels without a
//! reason, and conditions of compilation that hide a test. And raw identifiers, which hide a name
//! from the other rules.

use std::str::FromStr as _;

use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, Ident, TokenStream, TokenTree};

use crate::{
    files::Sources,
    gates::{DENIED, WARNED},
};

/// Attributes that lower the level of lints.
const LOWERING: [&str; 3] = ["allow", "expect", "warn"];

/// Groups with lints that the workspace denies.
const GROUPS: [&str; 3] = ["warnings", "clippy::all", "clippy::restriction"];

/// Lints of documentation, all of which `scripts/check` denies.
const OF_DOCUMENTATION: &str = "rustdoc::";

/// A lint that may be expected with a reason.
const EXPECTED: &str = "unsafe_code";

/// Conditions of compilation, without spaces.
const CONDITIONS: [&str; 12] = [
    "all(test,not(loom))",
    "loom",
    "miri",
    "not(loom)",
    "not(miri)",
    "not(target_arch=\"x86_64\")",
    "not(test)",
    "target_arch=\"aarch64\"",
    "target_arch=\"x86_64\"",
    "target_endian=\"little\"",
    "test",
    "unix",
];

/// Such attributes and identifiers.
///
/// # Errors
///
/// A file is not of Rust's tokens.
pub(crate) fn faults(sources: &Sources) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    for (file, text) in sources {
        let name = file.display();
        let tokens = TokenStream::from_str(text).map_err(|error| anyhow!("{name}: {error}"))?;
        let mut found = Vec::new();
        check(tokens, false, &mut found);
        broken.extend(found.into_iter().map(|fault| format!("{name}: {fault}")));
    }
    Ok(broken)
}

/// Checks tokens, also those of macros; `is_attribute` for those of `#[...]`.
fn check(tokens: TokenStream, is_attribute: bool, found: &mut Vec<String>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let is_mark = |at: usize, mark: char| matches!(&tokens[at], TokenTree::Punct(it) if it.as_char() == mark);
    for (at, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Ident(name) => found.extend(raw_identifier(name)),
            TokenTree::Group(group) => {
                let inner = at > 1 && is_mark(at - 1, '!') && is_mark(at - 2, '#');
                let begins = group.delimiter() == Delimiter::Bracket && (inner || at > 0 && is_mark(at - 1, '#'));
                let is_called = at > 1 && is_mark(at - 1, '!');
                let name = at.checked_sub(1 + usize::from(is_called)).map(|at| tokens[at].to_string());
                let name = name.as_deref().unwrap_or("");
                if group.delimiter() == Delimiter::Parenthesis && (is_attribute || is_called) {
                    check_list(name, &group.stream(), is_attribute, found);
                }
                check(group.stream(), is_attribute || begins, found);
            }
            _ => {}
        }
    }
}

/// Checks `name(...)` of an attribute, or `name!(...)`.
fn check_list(name: &str, list: &TokenStream, is_attribute: bool, found: &mut Vec<String>) {
    let parts = parts(list);
    if name == "cfg" || name == "cfg_attr" {
        let condition = parts.first().map_or("", String::as_str);
        if !CONDITIONS.contains(&condition) {
            found.push(format!("cfg({condition}) may hide code: tests/structure/src/levels.rs lists the conditions"));
        }
    } else if is_attribute && LOWERING.contains(&name) {
        let has_reason = parts.iter().any(|part| part.starts_with("reason="));
        if name != "warn" && !has_reason {
            found.push(format!("{name}({}) has no reason", parts.join(", ")));
        }
        let is_lowered = |part: &&String| {
            let is_expected = part == &EXPECTED && name == "expect" && has_reason;
            let last = part.rsplit("::").next().unwrap_or(part);
            let is_denied = DENIED.iter().any(|(_, lint)| *lint == last) || GROUPS.contains(&part.as_str());
            is_denied && !is_expected
        };
        let lowered = parts.iter().filter(is_lowered);
        found.extend(lowered.map(|lint| {
            format!("{name}({lint}): the workspace denies it; unsafe code alone may be expected, with a reason")
        }));
        let is_checked = |part: &&String| {
            part.starts_with(OF_DOCUMENTATION) || WARNED.iter().any(|(_, lint)| *lint == part.as_str())
        };
        let allowed = parts.iter().filter(|_| name == "allow").filter(is_checked);
        found.extend(allowed.map(|lint| format!("allow({lint}): the gate has this lint; expect it, with a reason")));
    }
}

/// Parts of a list between its commas, without spaces.
fn parts(list: &TokenStream) -> Vec<String> {
    let mut parts = vec![String::new()];
    for token in list.clone() {
        match token {
            TokenTree::Punct(mark) if mark.as_char() == ',' => parts.push(String::new()),
            token => {
                if let Some(part) = parts.last_mut() {
                    *part += &token.to_string().replace(' ', "");
                }
            }
        }
    }
    parts
}

fn raw_identifier(name: &Ident) -> Option<String> {
    let name = name.to_string();
    let plain = name.strip_prefix("r#")?;
    syn::parse_str::<Ident>(plain).is_ok().then(|| format!("{name} is no keyword: write {plain}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let sources = [("a.rs".into(), text.to_owned())].into();
        let faults = faults(&sources).expect("tokens").into_iter();
        faults
            .map(|fault| fault.trim_start_matches("a.rs: ").split([':', ')']).next().unwrap_or("").to_owned())
            .collect()
    }

    #[test]
    fn levels_of_denied_lints_are_not_lowered() {
        let right = "#![expect(unsafe_code, reason = \"x\")] #[deny(unsafe_code)] #[allow(dead_code, reason = \"x\")] mod x {}
            #[expect(missing_docs, rustdoc::bare_urls, reason = \"x\")] #[warn(unreachable_pub)] mod y {}
            fn f() { y.expect(unsafe_code); allow(todo); #[cfg_attr(not(test), expect(unsafe_code, reason = \"x\"))] z() }";
        assert_eq!(found(right), [""; 0]);
        let wrong = "#[allow(dead_code, unsafe_code, reason = \"x\")] mod x {} #![expect(unsafe_code)] #[warn(clippy::todo)] fn f() {}
            #[cfg_attr(test, allow(clippy::undocumented_unsafe_blocks, reason = \"x\"))] mod y {}
            macro_rules! m { () => { #[allow(unsafe_code, reason = \"x\")] mod z {} } }";
        let lowered = ["allow(unsafe_code", "expect(unsafe_code", "expect(unsafe_code", "warn(clippy"];
        assert_eq!(found(wrong), [&lowered[..], &["allow(clippy", "allow(unsafe_code"]].concat());
        assert_eq!(found("#![allow(warnings, reason = \"x\")]"), ["allow(warnings"]);
    }

    #[test]
    fn lints_of_the_gate_are_not_allowed() {
        let wrong =
            "#![allow(missing_docs, unreachable_pub, reason = \"x\")] #[allow(rustdoc::all, reason = \"x\")] mod x {}";
        assert_eq!(found(wrong), ["allow(missing_docs", "allow(unreachable_pub", "allow(rustdoc"]);
    }

    #[test]
    fn levels_have_a_reason() {
        assert_eq!(found("#[warn(dead_code)] #[allow(dead_code, reason = \"x\")] fn f() {}"), [""; 0]);
        assert_eq!(found("#[allow(dead_code)] fn f() {} #![expect(unused)]"), ["allow(dead_code", "expect(unused"]);
    }

    #[test]
    fn conditions_that_are_never_true_are_found() {
        let right =
            "#[cfg(all(test, not(loom)))] mod x; #![cfg_attr(not(test), no_std)] fn f() { cfg!(miri); cfg(1); }";
        assert_eq!(found(right), [""; 0]);
        for condition in ["any()", "all(test, any())", "false", "not(all())", "all(test, not(test))", "windows"] {
            for text in ["#[cfg(X)] mod x {}", "fn f() { if cfg!(X) {} }", "#[cfg_attr(X, test)] fn f() {}"] {
                let text = text.replace('X', condition);
                assert_eq!(found(&text).len(), 1, "{text}");
            }
        }
    }

    #[test]
    fn raw_identifiers_are_keywords() {
        assert_eq!(found("struct A { r#type: u8, r#in: u8, r#priv: u8 }"), [""; 0]);
        assert_eq!(found("use crate::r#name; struct r#Name;"), ["r#name is no keyword", "r#Name is no keyword"]);
    }
}
