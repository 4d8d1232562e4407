//! Names that the code defines, and those that sections of ARCHITECTURE.md take for such.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};
use syn::{
    Field, ImplItemConst, ImplItemFn, ImplItemType, ItemConst, ItemEnum, ItemFn, ItemMacro, ItemMod, ItemStatic,
    ItemStruct, ItemTrait, ItemType, ItemUnion, Macro, TraitItemConst, TraitItemFn, TraitItemType, Variant,
    visit::{self, Visit},
};

use crate::source::Crate;

/// Words before the name of an item that they define.
pub(crate) const ITEMS: [&str; 9] =
    ["fn", "struct", "enum", "union", "trait", "type", "const", "static", "macro_rules"];

/// Sections with names of the code.
const SECTIONS: [&str; 2] = ["Key types", "Rules"];

/// The config, with keys that are names of the code.
const CONFIG: &str = "config/roced.toml";

/// Names of the language, of the kernel and of verbs.
const FOREIGN: [&str; 7] = [
    "Ord",            // trait of the language
    "SOCK_SEQPACKET", // kind of socket
    "SHRINK",         // seals of a memfd
    "GROW",
    "FUTURE_WRITE",
    "SEAL",
    "futex", // system call
];

/// Files by the names that they define, and keys of the config.
#[derive(Debug, Default)]
pub(crate) struct Definitions {
    files: BTreeMap<String, BTreeSet<String>>,
}

impl Definitions {
    /// Names in these crates, without those of tests, and in the config.
    ///
    /// # Errors
    ///
    /// The config cannot be read.
    pub(crate) fn read(workspace: &Path, crates: &[Crate]) -> Result<Self> {
        let mut all = Self::default();
        for source in crates {
            for file in &source.files {
                let mut names = Names::default();
                names.visit_file(&file.syntax);
                all.add(&format!("{}/src/{}", source.folder, file.path.display()), names.found);
            }
        }
        let config = fs::read_to_string(workspace.join(CONFIG)).context(CONFIG)?;
        let keys = config.lines().filter_map(|line| line.trim_start_matches('#').split_once('='));
        all.add(CONFIG, keys.map(|(key, _)| key.trim().to_owned()).collect());
        Ok(all)
    }

    fn add(&mut self, file: &str, names: BTreeSet<String>) {
        for name in names {
            self.files.entry(name).or_default().insert(file.to_owned());
        }
    }

    /// Whether a file defines all names of a path: `Type::function`.
    pub(crate) fn has(&self, path: &[&str]) -> bool {
        let mut names = path.iter().map(|name| self.files.get(*name));
        let Some(Some(first)) = names.next() else { return false };
        let rest: Option<Vec<_>> = names.collect();
        rest.is_some_and(|rest| first.iter().any(|file| rest.iter().all(|files| files.contains(file))))
    }
}

/// Names in the sections "Key types" and "Rules" that nothing defines.
///
/// # Errors
///
/// ARCHITECTURE.md cannot be read or has no such sections.
pub(crate) fn undefined(workspace: &Path, definitions: &Definitions) -> Result<Vec<String>> {
    let text = fs::read_to_string(workspace.join("ARCHITECTURE.md")).context("ARCHITECTURE.md")?;
    let mut missing = Vec::new();
    for heading in SECTIONS {
        let section = section(&text, heading)?;
        // Code may go on in the next line.
        for quoted in section.split('`').skip(1).step_by(2) {
            let wrong = paths(quoted).into_iter().filter(|path| !FOREIGN.contains(&path[0]) && !definitions.has(path));
            missing.extend(
                wrong.map(|path| {
                    format!("ARCHITECTURE.md, {heading}: nothing defines {} of `{quoted}`", path.join("::"))
                }),
            );
        }
    }
    Ok(missing)
}

/// Paths of names in quoted code: `Type::Variant(Other)` has two, `key = "value"` one. Files,
/// commands and other text have none.
pub(crate) fn paths(quoted: &str) -> Vec<Vec<&str>> {
    let code = quoted.split_once(" = ").map_or(quoted, |(key, _)| key);
    let is_code = |letter: char| letter.is_ascii_alphanumeric() || "_:<>'()".contains(letter);
    if !code.chars().all(is_code) {
        return Vec::new();
    }
    let parts = code.split(['<', '>', '(', ')']).filter(|part| !part.is_empty() && !part.starts_with('\''));
    let paths = parts.map(|part| part.split("::").collect::<Vec<_>>());
    paths.filter(|path| path.iter().all(|name| name.starts_with(|first: char| first.is_alphabetic()))).collect()
}

/// Names that a file defines.
#[derive(Default)]
struct Names {
    found: BTreeSet<String>,
}

/// For each kind of item: its name counts.
macro_rules! named {
    ($($visit:ident $kind:ident: $($name:ident).+;)+) => {
        $(fn $visit(&mut self, item: &'ast $kind) {
            self.found.insert(item.$($name).+.to_string());
            visit::$visit(self, item);
        })+
    };
}

impl<'ast> Visit<'ast> for Names {
    named! {
        visit_item_const ItemConst: ident;
        visit_item_enum ItemEnum: ident;
        visit_item_fn ItemFn: sig.ident;
        visit_item_static ItemStatic: ident;
        visit_item_struct ItemStruct: ident;
        visit_item_trait ItemTrait: ident;
        visit_item_type ItemType: ident;
        visit_item_union ItemUnion: ident;
        visit_impl_item_const ImplItemConst: ident;
        visit_impl_item_fn ImplItemFn: sig.ident;
        visit_impl_item_type ImplItemType: ident;
        visit_trait_item_const TraitItemConst: ident;
        visit_trait_item_fn TraitItemFn: sig.ident;
        visit_trait_item_type TraitItemType: ident;
        visit_variant Variant: ident;
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if module.ident != "tests" {
            self.found.insert(module.ident.to_string());
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_macro(&mut self, item: &'ast ItemMacro) {
        self.found.extend(item.ident.iter().map(ToString::to_string));
        // `named_counters! { Name, ... }` defines it.
        let mut tokens = item.mac.tokens.clone().into_iter();
        if let Some(TokenTree::Ident(name)) = tokens.find(|token| matches!(token, TokenTree::Ident(_))) {
            self.found.extend(Some(name.to_string()).filter(|name| name.starts_with(char::is_uppercase)));
        }
        visit::visit_item_macro(self, item);
    }

    fn visit_field(&mut self, field: &'ast Field) {
        self.found.extend(field.ident.iter().map(ToString::to_string));
        visit::visit_field(self, field);
    }

    fn visit_macro(&mut self, called: &'ast Macro) {
        self.add_tokens(called.tokens.clone());
    }
}

impl Names {
    /// Items that a macro's tokens define: `struct Name`, or `Name { ... }` of a type.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for pair in tokens.windows(2) {
            match pair {
                [TokenTree::Ident(kind), TokenTree::Ident(name)] if ITEMS.contains(&&*kind.to_string()) => {
                    self.found.insert(name.to_string());
                }
                [TokenTree::Ident(name), TokenTree::Group(_)] if name.to_string().starts_with(char::is_uppercase) => {
                    self.found.insert(name.to_string());
                }
                _ => {}
            }
        }
        for token in tokens {
            if let TokenTree::Group(group) = token {
                self.add_tokens(group.stream());
            }
        }
    }
}

/// Text of a section of ARCHITECTURE.md, without its heading.
///
/// # Errors
///
/// There is no such section.
pub(crate) fn section<'a>(text: &'a str, heading: &str) -> Result<&'a str> {
    let section = text.split("\n## ").find_map(|section| section.strip_prefix(heading)?.strip_prefix('\n'));
    section.with_context(|| format!("ARCHITECTURE.md has no section \"{heading}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definitions(files: &[(&str, &str)]) -> Definitions {
        let mut all = Definitions::default();
        for (file, text) in files {
            let mut names = Names::default();
            names.visit_file(&syn::parse_file(text).expect("valid Rust"));
            all.add(file, names.found);
        }
        all
    }

    #[test]
    fn items_fields_and_variants_are_definitions_and_uses_are_none() {
        let text = "struct A { b: C } enum D { E(F) } impl A { const G: u8 = 1; fn h(i: u8) { j(i); } }
            trait K { fn l(); } macro_rules! m { () => {} } bodies! { N { o: u8 } } reasons! { /** text */ R, s { T { } } } x! { pub struct P; }
            mod tests { fn q() {} }";
        let all = definitions(&[("a.rs", text)]);
        for name in ["A", "b", "D", "E", "G", "h", "K", "l", "m", "N", "P", "R", "T"] {
            assert!(all.has(&[name]), "{name}");
        }
        for name in ["C", "F", "i", "j", "q", "s", "tests"] {
            assert!(!all.has(&[name]), "{name}");
        }
    }

    #[test]
    fn a_path_is_of_one_file() {
        let all = definitions(&[("a.rs", "impl A { fn f() {} } struct A;"), ("b.rs", "fn g() {} struct B;")]);
        assert!(all.has(&["A", "f"]) && all.has(&["g"]));
        assert!(!all.has(&["A", "g"]) && !all.has(&["A", "x"]) && !all.has(&["x", "f"]));
    }

    #[test]
    fn quoted_code_has_names_and_other_text_has_none() {
        assert_eq!(paths("Disposition::Dropped(DropReason)"), [vec!["Disposition", "Dropped"], vec!["DropReason"]]);
        assert_eq!(paths("Packet<'a>"), [["Packet"]]);
        assert_eq!(paths("recovery = \"go-back-n\""), [["recovery"]]);
        for text in ["sigbus.rs", "/proc/self/mem", "docs/x", "[[worker]]", "4096"] {
            assert_eq!(paths(text), [[""; 0]; 0], "{text}");
        }
    }
}
