//! Names of tests: functions with `#[test]`, and the list of end-to-end tests.

use std::collections::BTreeSet;

/// Folder of the end-to-end tests, which `main.rs` in it lists by module and name.
pub(crate) const END_TO_END: &str = "tests/e2e/tests/";

/// Functions of a file that have the attribute `#[test]`, and run by default.
pub(crate) fn with_attribute(text: &str) -> BTreeSet<&str> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let is_test = |at: usize| {
        let above = || lines[..at].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        let is_left_out = |line: &&str| line.starts_with("#[ignore") || *line == "#[cfg(any())]";
        above().any(|line| *line == "#[test]") && !above().any(is_left_out)
    };
    let heads =
        lines.iter().enumerate().filter_map(|(at, line)| Some((at, line.strip_prefix("fn ")?.split_once('(')?.0)));
    heads.filter(|(at, _)| is_test(*at)).map(|(_, name)| name).collect()
}

/// Modules and names of the list `tests! { module: name name; ... }`.
pub(crate) fn listed(list: &str) -> BTreeSet<(&str, &str)> {
    let modules = list.split_once("tests! {").map_or("", |(_, list)| list).split(';');
    let named = modules.filter_map(|entry| entry.trim().split_once(':'));
    named.flat_map(|(module, names)| names.split_whitespace().map(move |name| (module, name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_without_the_attribute_is_no_test() {
        let text = "#[test]\n#[should_panic]\n// text\nfn a() {}\nfn b() {}\n    #[test]\n    fn c(x in 0..1) {}\n#[cfg(test)]\nfn d() {}\n#[test]\n#[ignore = \"long\"]\nfn e() {}";
        assert_eq!(with_attribute(text), BTreeSet::from(["a", "c"]));
    }

    #[test]
    fn an_end_to_end_test_is_one_that_is_listed() {
        let list = "tests! {\n    faults: one two\n        three;\n    wire: four;\n};";
        assert_eq!(
            listed(list),
            BTreeSet::from([("faults", "one"), ("faults", "three"), ("faults", "two"), ("wire", "four")])
        );
    }
}
