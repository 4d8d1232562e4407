//! Names of the end-to-end tests, which are no functions with `#[test]` but trials of a list.

use std::collections::BTreeSet;

/// Folder of the end-to-end tests, which `main.rs` in it lists by module and name.
pub(crate) const END_TO_END: &str = "tests/e2e/tests/";

/// Modules and names of the list `tests! { module: name name; ... }`.
pub(crate) fn listed(list: &str) -> BTreeSet<(&str, &str)> {
    let list = list.split_once("= tests! {").and_then(|(_, list)| list.split_once('}')).map_or("", |(list, _)| list);
    let named = list.split(';').filter_map(|entry| entry.trim().split_once(':'));
    named.flat_map(|(module, names)| names.split_whitespace().map(move |name| (module, name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_to_end_test_is_one_that_is_listed() {
        let list = "const TESTS: X = tests! {\n    faults: one two\n        three;\n    wire: four;\n}; fn f() { a; wire: five }";
        assert_eq!(
            listed(list),
            BTreeSet::from([("faults", "one"), ("faults", "three"), ("faults", "two"), ("wire", "four")])
        );
    }
}
