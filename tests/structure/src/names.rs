//! Names: types that share one, functions with names that the prose rules forbid.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::Result;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::Item;

use crate::{
    files::files_below,
    prose::{CLAUSE, PEOPLE},
    source::Crate,
};

/// Names that their module makes clear, and pairs that are one idea on two sides of an interface.
const IDIOMATIC: [&str; 15] = [
    "CmChannel",        // both ends of an event channel of the connection manager
    "Command",          // of a command line, and of the control thread to a worker
    "Context",          // of a queue pair's roles, and the verbs object
    "Device",           // the client's, and the verbs object
    "DeviceAttributes", // in a control message, and the client's
    "GidEntry",         // as above
    "PortAttributes",   // as above
    "Inbox",            // the one of commands is an alias
    "Mailbox",          // as above
    "Mr",               // the transport's, and the verbs object
    "Qp",               // as above
    "Srq",              // as above
    "Result",           // of a crate
    "RoceVersion",      // the kernel's view and the client's
    "ServiceType",      // the transport's and the client's
];

/// Macros that define types: `Name { ... }`.
const DEFINING: [&str; 2] = ["bodies", "choices"];

/// Types of one name in several places, with these places.
pub(crate) fn repeated_types<'a>(crates: impl Iterator<Item = &'a Crate>) -> Vec<String> {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in crates {
        for file in &source.files {
            let place = format!("{}/src/{}", source.folder, file.path.display());
            for name in defined_types(&file.syntax.items) {
                places.entry(name).or_default().push(place.clone());
            }
        }
    }
    let repeated = places.into_iter().filter(|(name, at)| at.len() > 1 && !IDIOMATIC.contains(&name.as_str()));
    repeated.map(|(name, at)| format!("{name} names several types: {}", at.join(", "))).collect()
}

/// Functions with a word for persons or a free relative in their name, tests included.
///
/// # Errors
///
/// A file cannot be read.
pub(crate) fn functions_with_banned_words(workspace: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for file in files_below(workspace)?.iter().filter(|file| file.extension().is_some_and(|it| it == "rs")) {
        let text = fs::read_to_string(workspace.join(file))?;
        found.extend(banned_functions(&text).map(|name| format!("{}: the name of fn {name}", file.display())));
    }
    Ok(found)
}

fn banned_functions(text: &str) -> impl Iterator<Item = &str> {
    let starts = text.match_indices("fn ").map(|(at, word)| &text[at + word.len()..]);
    let names = starts.filter_map(|rest| rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next());
    names.filter(|name| name.split('_').any(|word| PEOPLE.contains(&word) || CLAUSE.contains(&word)))
}

/// The types that items define, those of inline modules included, but for tests.
fn defined_types(items: &[Item]) -> Vec<String> {
    let mut names = Vec::new();
    for item in items {
        match item {
            Item::Struct(it) => names.push(it.ident.to_string()),
            Item::Enum(it) => names.push(it.ident.to_string()),
            Item::Union(it) => names.push(it.ident.to_string()),
            Item::Trait(it) => names.push(it.ident.to_string()),
            Item::Type(it) => names.push(it.ident.to_string()),
            Item::Macro(it) if DEFINING.iter().any(|name| it.mac.path.is_ident(name)) => {
                names.extend(types_of_macro(it.mac.tokens.clone()));
            }
            Item::Mod(it) if it.ident != "tests" => {
                names.extend(it.content.iter().flat_map(|(_, items)| defined_types(items)));
            }
            _ => {}
        }
    }
    names
}

/// The types that a macro of [`DEFINING`] defines: each name before braces.
fn types_of_macro(tokens: TokenStream) -> Vec<String> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let name = |pair: &[TokenTree]| match pair {
        [TokenTree::Ident(name), TokenTree::Group(body)] if body.delimiter() == Delimiter::Brace => {
            Some(name.to_string())
        }
        _ => None,
    };
    tokens.windows(2).filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_function_names_count() {
        // In two pieces, so that this file passes.
        let text = concat!("fn somewhat_good() {} fn ", "nobody_waits() {} // fn of what\nfn sends() {}");
        assert_eq!(banned_functions(text).collect::<Vec<_>>(), [concat!("nobody", "_waits")]);
    }

    #[test]
    fn types_of_inline_modules_count_and_those_of_tests_do_not() {
        let text = "struct A; mod b { enum C {} } mod tests { struct D; } impl E for A { type Err = (); } type F = A;
            choices! { G { First = \"first\", } H { Second = \"second\", } } other! { I {} }";
        let file = syn::parse_file(text).expect("valid Rust");
        assert_eq!(defined_types(&file.items), ["A", "C", "F", "G", "H"]);
    }
}
