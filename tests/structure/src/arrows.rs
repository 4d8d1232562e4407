//! Blocks of arrows in ARCHITECTURE.md: lines `name ──► name, name`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result};

use crate::graph::circles;

/// For each name, those that it may use.
pub(crate) type Arrows = BTreeMap<String, BTreeSet<String>>;

/// Reads the block of arrows below a heading of ARCHITECTURE.md.
///
/// # Errors
///
/// The document cannot be read or has no such block.
pub(crate) fn read_arrows(workspace: &Path, heading: &str) -> Result<Arrows> {
    let file = workspace.join("ARCHITECTURE.md");
    let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let block = text
        .split_once(heading)
        .and_then(|(_, rest)| rest.split("```").nth(1))
        .with_context(|| format!("ARCHITECTURE.md has no block below \"{heading}\""))?;
    Ok(arrows(block))
}

fn arrows(block: &str) -> Arrows {
    let arrow = |line: &str| {
        let (from, to) = line.split_once("──►")?;
        let to = to.split(',').map(str::trim).filter(|name| *name != "-").map(str::to_owned).collect();
        Some((from.trim().to_owned(), to))
    };
    block.lines().filter_map(arrow).collect()
}

/// Faults of a list of arrows, given the uses that exist: arrows that begin at nothing, arrows that
/// no use needs, and arrows in a circle.
pub(crate) fn faults(arrows: &Arrows, used: &Arrows) -> Vec<String> {
    let mut wrong = Vec::new();
    for (from, allowed) in arrows {
        let Some(used) = used.get(from) else {
            wrong.push(format!("the arrow of {from} begins at nothing"));
            continue;
        };
        wrong.extend(allowed.difference(used).map(|to| format!("nothing needs the arrow from {from} to {to}")));
    }
    let names: Vec<&String> = arrows.keys().collect();
    let at = |name: &String| names.binary_search(&name).ok();
    let graph: Vec<BTreeSet<usize>> = names.iter().map(|from| arrows[*from].iter().filter_map(at).collect()).collect();
    for circle in circles(&graph) {
        let circle: Vec<&str> = circle.into_iter().map(|at| names[at].as_str()).collect();
        wrong.push(format!("arrows make a circle: {}", circle.join(", ")));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_no_circle_and_no_arrow_without_a_use() {
        let used = arrows(" a ──► b\n b ──► c\n c ──► -\n");
        assert_eq!(faults(&used, &used), [""; 0]);
        let list = arrows(" a ──► b, c\n b ──► c\n c ──► a\n d ──► -\n");
        let wrong = [
            "nothing needs the arrow from a to c",
            "nothing needs the arrow from c to a",
            "the arrow of d begins at nothing",
            "arrows make a circle: a, b, c",
        ];
        assert_eq!(faults(&list, &used), wrong);
    }
}
