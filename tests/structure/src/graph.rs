//! Circles of a graph.

use std::collections::BTreeSet;

/// Groups of nodes that reach each other (strongly connected components of two nodes or more), the
/// largest first. `graph` has for each node, by index, the nodes that it leads to.
pub(crate) fn circles(graph: &[BTreeSet<usize>]) -> Vec<Vec<usize>> {
    let reached: Vec<BTreeSet<usize>> = (0..graph.len()).map(|from| reachable(graph, from)).collect();
    let mut seen = BTreeSet::new();
    let mut circles = Vec::new();
    for from in 0..graph.len() {
        let circle: Vec<usize> = reached[from].iter().copied().filter(|to| reached[*to].contains(&from)).collect();
        if circle.len() > 1 && seen.insert(circle.clone()) {
            circles.push(circle);
        }
    }
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    circles
}

/// Every node that `from` leads to, directly or not; `from` counts only if a path leads back to it.
fn reachable(graph: &[BTreeSet<usize>], from: usize) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<usize> = graph[from].iter().copied().collect();
    while let Some(at) = open.pop() {
        if reached.insert(at) {
            open.extend(&graph[at]);
        }
    }
    reached
}
