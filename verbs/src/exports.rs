//! The symbols, from the table `symbols`.
#![cfg_attr(not(test), expect(unsafe_code, reason = "names for the linker"))]

include!(concat!(env!("OUT_DIR"), "/exports.rs"));

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, process::Command};

    use super::{NAMES, functions};

    /// Where Debian keeps the library of rdma-core.
    const THEIRS: &str = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1";

    #[test]
    fn each_symbol_of_the_distributions_library_is_here() {
        assert!(functions().iter().all(|function| !function.is_null()));
        let ours: BTreeSet<_> = NAMES.iter().map(|(node, name)| format!("{name}@@{node}")).collect();
        assert_eq!(ours.len(), NAMES.len(), "a symbol stands in the table twice");
        let read =
            Command::new("readelf").args(["--dyn-syms", "--wide", THEIRS]).output().expect("readelf: scripts/setup");
        let table = String::from_utf8(read.stdout).expect("names are ASCII");
        let defined = table.lines().filter(|line| !line.contains(" UND ") && !line.contains(" ABS "));
        // Old versions ('@') are from before 2006; no program imports them.
        let theirs: Vec<_> =
            defined.filter_map(|line| line.split_whitespace().find(|word| word.contains("@@IBVERBS"))).collect();
        assert!(theirs.len() > 100, "is libibverbs1 there (scripts/setup)? {table}");
        let missing: Vec<_> = theirs.into_iter().filter(|name| !ours.contains(*name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
