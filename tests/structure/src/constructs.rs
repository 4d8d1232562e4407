//! Constructs that hide an import, a module or a test from the other rules, and are forbidden.

use std::path::Path;

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};
use syn::{
    Attribute, Block, Item, ItemExternCrate, ItemFn, ItemImpl, ItemMacro, ItemMod, ItemUse, Macro, Meta, Stmt, Token,
    UseTree, Visibility,
    punctuated::Punctuated,
    visit::{self, Visit},
};

use crate::{
    compiled::Compiled,
    crates::{self, Member},
    files::Sources,
    imports::is_test_only,
};

/// Sources of programs and libraries that compile a file of another crate: its command line for
/// manuals, its host for the fuzzer, its benches for a program.
const WITH_PATH: [&str; 3] = ["bench/pieces/src/main.rs", "packaging/src/main.rs", "tests/fuzz/src/lib.rs"];

/// Crates of the language, which a crate without `std` names.
const LANGUAGE: [&str; 3] = ["alloc", "core", "std"];

/// Attributes that `cfg_attr` may not add.
const NOT_CONDITIONAL: [&str; 5] = ["cfg", "cfg_attr", "ignore", "path", "test"];

/// Forbidden constructs of all sources.
///
/// # Errors
///
/// A file is not valid Rust.
pub(crate) fn forbidden(sources: &Sources, members: &[Member], compiled: &Compiled) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    for (file, text) in sources {
        let member = members.iter().filter(|member| file.starts_with(&member.folder));
        let member = member.max_by_key(|member| member.folder.len());
        let name = member.map_or(String::new(), |member| member.name().replace('-', "_"));
        let is_source = member.is_some_and(|member| file.starts_with(Path::new(&member.folder).join("src")));
        let has_arrows = is_source && !file.starts_with(crates::GROUP) && !compiled.is_of_tests(file);
        let mut constructs = Constructs {
            library: &name,
            has_paths: !is_source || WITH_PATH.iter().any(|it| file == Path::new(it)),
            has_arrows,
            found: Vec::new(),
        };
        constructs.visit_file(&syn::parse_file(text).with_context(|| file.display().to_string())?);
        broken.extend(constructs.found.into_iter().map(|construct| format!("{}: {construct}", file.display())));
    }
    Ok(broken)
}

/// Visits a file.
struct Constructs<'a> {
    /// Name of the crate's library.
    library: &'a str,
    /// Whether modules may have `#[path]`.
    has_paths: bool,
    /// Whether its imports have arrows.
    has_arrows: bool,
    found: Vec<&'static str>,
}

impl Constructs<'_> {
    /// Checks a `use` below `prefix`.
    fn check_tree(&mut self, prefix: &mut Vec<String>, tree: &UseTree, is_public: bool) {
        let is_root = |path: &[String], library: &str| {
            path.iter().all(|part| matches!(part.as_str(), "crate" | "self" | "super" | "$crate") || part == library)
        };
        match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.check_tree(prefix, &path.tree, is_public);
                prefix.pop();
            }
            UseTree::Group(group) => group.items.iter().for_each(|item| self.check_tree(prefix, item, is_public)),
            UseTree::Rename(rename) => {
                prefix.push(rename.ident.to_string());
                if is_root(prefix, self.library) && rename.rename != "_" {
                    self.found.push("`use crate as name` hides imports: write `crate`, `self` or `super`");
                }
                prefix.pop();
            }
            UseTree::Glob(_) => {
                let is_prelude = prefix.last().is_some_and(|last| last == "prelude");
                // A parent passes on items of its child.
                let is_passed_on = is_public && prefix.len() == 2 && prefix[0] == "self";
                if self.has_arrows && !is_passed_on && (!is_prelude || is_root(&prefix[..1], self.library)) {
                    self.found.push("`use path::*` hides imports: name the items");
                }
            }
            UseTree::Name(_) => {}
        }
    }

    /// Checks the tokens of a macro, which are no items; in a module among them `super` has
    /// another meaning.
    fn check_tokens(&mut self, tokens: TokenStream, is_module: bool) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let texts: Vec<String> = tokens.iter().map(ToString::to_string).collect();
        let text = |at: usize| texts.get(at).map_or("", |text| text);
        for (at, token) in tokens.iter().enumerate() {
            // The name of a module may be `$name`.
            let is_named = |at: usize| text(at) == "mod" || text(at) == "$" && at > 0 && text(at - 1) == "mod";
            match (token, text(at)) {
                (TokenTree::Group(group), _) => {
                    self.check_tokens(group.stream(), is_module || at > 1 && is_named(at - 2));
                }
                (_, "include") if text(at + 1) == "!" => self.add_include(),
                (_, "mod") if [2, 3].iter().any(|next| text(at + next) == ";" && is_named(at + next - 2)) => {
                    self.found.push("a macro with `mod name;` hides a file: write it outside of macros");
                }
                (_, "super") if is_module && text(at + 3) == "super" => {
                    self.found.push("`super::super` in a module of a macro hides imports: write `crate`");
                }
                (_, "extern") if self.has_arrows && text(at + 1) == "crate" && text(at + 2) == "std" => self.add_std(),
                (_, "use") => self.check_use(&texts[at + 1..], is_module),
                _ => {}
            }
        }
    }

    /// Checks a `use` in a macro, by the texts of the tokens behind that word. A module may take
    /// the names around it.
    fn check_use(&mut self, texts: &[String], is_module: bool) {
        let statement: Vec<&str> = texts.iter().map(String::as_str).take_while(|text| *text != ";").collect();
        let words = statement.iter().flat_map(|text| text.split([' ', '{', '}', ',']));
        let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        let is_around = is_module && statement == ["super", ":", ":", "*"];
        let is_renamed = words.windows(2).any(|pair| pair[0] == "as" && pair[1] != "_");
        if is_renamed || words.iter().any(|word| word.ends_with('*')) && !is_around {
            self.found.push("a macro with `use path::*` or `use path as name` hides imports");
        }
    }

    fn add_std(&mut self) {
        self.found.push("`extern crate std` gives a crate without std the operating system: only tests have it");
    }

    fn add_include(&mut self) {
        self.found.push("`include!` hides source: write `mod`, or generate a file below OUT_DIR");
    }
}

impl<'ast> Visit<'ast> for Constructs<'_> {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        let has_path = module.attrs.iter().any(|attribute| attribute.path().is_ident("path"));
        if has_path && module.content.is_some() {
            self.found.push("`#[path]` of an inline module hides files: move them");
        } else if has_path && !self.has_paths {
            self.found.push("`#[path]` hides a module: move the file to the place that its name gives it");
        }
        let has_arrows = self.has_arrows;
        self.has_arrows &= !module.attrs.iter().any(is_test_only);
        if self.has_arrows && module.attrs.iter().any(|attribute| attribute.path().is_ident("macro_use")) {
            self.found.push("`#[macro_use]` hides imports: write `pub(crate) use name;` below the macro");
        }
        visit::visit_item_mod(self, module);
        self.has_arrows = has_arrows;
    }

    fn visit_item_macro(&mut self, item: &'ast ItemMacro) {
        if self.has_arrows && item.attrs.iter().any(|attribute| attribute.path().is_ident("macro_export")) {
            self.found.push("`#[macro_export]` hides imports: write `pub use name;` below the macro");
        }
        visit::visit_item_macro(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        let has_arrows = self.has_arrows;
        self.has_arrows &= !item.attrs.iter().any(is_test_only);
        visit::visit_item_fn(self, item);
        self.has_arrows = has_arrows;
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        let has_arrows = self.has_arrows;
        self.has_arrows &= !item.attrs.iter().any(is_test_only);
        visit::visit_item_impl(self, item);
        self.has_arrows = has_arrows;
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let has_arrows = self.has_arrows;
        self.has_arrows &= !item.attrs.iter().any(is_test_only);
        self.check_tree(&mut Vec::new(), &item.tree, matches!(item.vis, Visibility::Public(_)));
        self.has_arrows = has_arrows;
    }

    fn visit_item_extern_crate(&mut self, item: &'ast ItemExternCrate) {
        if item.rename.is_some() || !LANGUAGE.iter().any(|name| item.ident == name) {
            self.found.push("`extern crate` other than alloc, core, std hides imports: write `use`");
        } else if self.has_arrows && item.ident == "std" && !item.attrs.iter().any(is_test_only) {
            self.add_std();
        }
    }

    fn visit_block(&mut self, block: &'ast Block) {
        let is_module = |statement: &Stmt| matches!(statement, Stmt::Item(Item::Mod(_)));
        if block.stmts.iter().any(is_module) {
            self.found.push("a module in a function is hidden: write it outside");
        }
        visit::visit_block(self, block);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if attribute.path().is_ident("ignore") && matches!(attribute.meta, Meta::Path(_)) {
            self.found.push("`#[ignore]` hides a test: give the reason, `#[ignore = \"...\"]`");
        }
        if let Meta::List(list) = &attribute.meta
            && list.path.is_ident("cfg_attr")
        {
            let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).unwrap_or_default();
            if parts.iter().skip(1).any(|part| NOT_CONDITIONAL.iter().any(|name| part.path().is_ident(name))) {
                self.found.push("`cfg_attr` may not add cfg, ignore, path or test: write them, or `cfg`");
            }
        }
        visit::visit_attribute(self, attribute);
    }

    fn visit_macro(&mut self, called: &'ast Macro) {
        let text = called.tokens.to_string().replace(' ', "");
        let is_include = called.path.segments.last().is_some_and(|name| name.ident == "include");
        if is_include && !text.starts_with("concat!(env!(\"OUT_DIR\"),") {
            self.add_include();
        }
        self.check_tokens(called.tokens.clone(), false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first words of each construct that is found.
    fn found(file: &str, text: &str) -> Vec<String> {
        let sources: Sources = [(file.into(), text.to_owned())].into();
        let manifest = "[package]\nname = \"my-lib\"\n".parse().expect("valid");
        let member = Member { folder: "a".into(), manifest };
        let compiled = Compiled::default();
        let found = forbidden(&sources, &[member], &compiled).expect("valid Rust");
        found.iter().map(|it| it.trim_start_matches(file).chars().skip(2).take(22).collect()).collect()
    }

    #[test]
    fn imports_that_hide_a_folder_are_forbidden() {
        for hidden in [
            "crate as me",
            "self as me",
            "super as me",
            "super::super as me",
            "crate::{self as me}",
            "my_lib as me",
            "super::{super as me}",
        ] {
            assert_eq!(found("a/src/b.rs", &format!("use {hidden};")), ["`use crate as name` hi"], "{hidden}");
        }
        for hidden in ["crate", "super::super", "self", "crate::x", "x", "my_lib", "crate::prelude"] {
            let text = format!("fn f() {{ use {hidden}::*; }} #[cfg(test)] mod tests {{ use super::*; }}");
            assert_eq!(found("a/src/b.rs", &text), ["`use path::*` hides im"], "{hidden}");
            assert_eq!(found("a/tests/b.rs", &text), [""; 0], "{hidden}");
        }
        assert_eq!(
            found("a/src/b.rs", "use x::prelude::*; use crate::x as y; use crate::T as _; use y as z;"),
            [""; 0]
        );
        assert_eq!(
            found("a/src/b.rs", "m! { use crate::*; } m! { use $crate as me; } m! { x as y; use a::b; }").len(),
            2
        );
    }

    #[test]
    fn modules_and_source_in_hidden_places_are_forbidden() {
        let path = "#[path = \"x.rs\"] mod x;";
        assert_eq!(found("a/src/b.rs", path), ["`#[path]` hides a modu"]);
        assert_eq!(found("a/tests/b.rs", path), [""; 0]);
        assert_eq!(found("a/tests/b.rs", "#[path = \"x\"] mod x { mod y; }"), ["`#[path]` of an inline"]);
        for text in ["include!(\"x.rs\");", "fn f() { include!(\"x.rs\") }", "m! { include!(concat!(\"x\")); }"] {
            assert_eq!(found("a/tests/b.rs", text), ["`include!` hides sourc"], "{text}");
        }
        assert_eq!(found("a/src/b.rs", "include!(concat!(env!(\"OUT_DIR\"), \"/x.rs\"));"), [""; 0]);
        for text in ["m! { mod x; }", "macro_rules! m { ($x:ident) => { mod $x; } }"] {
            assert_eq!(found("a/tests/b.rs", text), ["a macro with `mod name"], "{text}");
        }
        assert_eq!(found("a/tests/b.rs", "fn f() { mod x {} }"), ["a module in a function"]);
        for text in ["extern crate self as x;", "extern crate my_lib;", "extern crate std as x;"] {
            assert_eq!(found("a/src/b.rs", text), ["`extern crate` other t"], "{text}");
        }
        assert_eq!(found("a/src/b.rs", "extern crate alloc;"), [""; 0]);
        for text in ["extern crate std;", "fn f() { extern crate std; }", "m! { extern crate std; }"] {
            assert_eq!(found("a/src/b.rs", text), ["`extern crate std` giv"], "{text}");
            assert_eq!(found("a/src/b.rs", &format!("#[cfg(test)] mod tests {{ {text} }}")), [""; 0], "{text}");
            assert_eq!(found("a/tests/b.rs", text), [""; 0], "{text}");
        }
        assert_eq!(found("a/src/b.rs", "#[cfg(test)] extern crate std;"), [""; 0]);
    }

    #[test]
    fn macros_that_other_files_use_have_paths() {
        let module = "#[macro_use] pub mod x;";
        assert_eq!(found("a/src/b.rs", module), ["`#[macro_use]` hides i"]);
        assert_eq!(found("a/tests/b.rs", module), [""; 0]);
        assert_eq!(found("a/src/b.rs", "#[cfg(test)] #[macro_use] mod x;"), [""; 0]);
        assert_eq!(found("a/src/b.rs", "#[macro_export] macro_rules! m { () => {}; }"), ["`#[macro_export]` hide"]);
        assert_eq!(found("a/src/b.rs", "macro_rules! m { () => {}; } pub(crate) use m;"), [""; 0]);
    }

    #[test]
    fn attributes_of_tests_and_modules_are_no_conditional_ones() {
        for name in ["ignore", "path = \"x\"", "test", "cfg(any())"] {
            let text = format!("#[cfg_attr(test, {name})] fn f() {{}}");
            assert_eq!(found("a/src/b.rs", &text), ["`cfg_attr` may not add"], "{name}");
        }
        assert_eq!(found("a/src/b.rs", "#![cfg_attr(not(test), expect(x))]"), [""; 0]);
        assert_eq!(found("a/tests/b.rs", "#[test] #[ignore] fn f() {}"), ["`#[ignore]` hides a te"]);
        assert_eq!(found("a/tests/b.rs", "#[test] #[ignore = \"a measurement\"] fn f() {}"), [""; 0]);
    }
}
