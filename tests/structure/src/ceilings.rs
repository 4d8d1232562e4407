//! Words that CONVENTIONS.md bans and that are in the workspace: their number in each place may
//! only fall, and no other place has any.

use std::collections::BTreeMap;

use crate::prose::Prose;

/// Most comment lines that are too long, percent.
const LONG_LINES_MAX: f64 = 1.0;

/// People words, free relatives and trailing words of the comments or the document, and all of them
/// in messages.
type Counts = [usize; 4];

/// Names of [`Counts`].
const NAMES: [&str; 4] = ["people words", "free relatives", "trailing words", "such words in messages"];

const CEILINGS: [(&str, Counts); 19] = [
    ("ARCHITECTURE.md", [1, 0, 0, 0]),
    ("CHANGELOG.md", [2, 0, 0, 0]),
    ("CONVENTIONS.md", [2, 3, 0, 0]),
    ("client", [1, 2, 0, 0]),
    ("cm", [1, 1, 0, 0]),
    ("daemon", [5, 5, 5, 0]),
    ("docs/README.md", [0, 1, 0, 0]),
    ("docs/conformance.md", [2, 1, 0, 0]),
    ("docs/drivers.md", [2, 0, 0, 0]),
    ("docs/fairness.md", [0, 2, 1, 0]),
    ("docs/memory.md", [0, 2, 3, 0]),
    ("docs/threat-model.md", [3, 1, 0, 0]),
    ("docs/tuning.md", [1, 0, 0, 0]),
    ("memory", [1, 1, 3, 0]),
    ("shared/abi", [0, 1, 0, 0]),
    ("tests/e2e", [1, 0, 0, 0]),
    ("tests/sim", [0, 0, 1, 0]),
    ("transport", [3, 7, 0, 0]),
    ("verbs", [1, 0, 0, 0]),
];

/// Places with another number of words of a kind than their ceiling, and ceilings without a place.
/// A ceiling above the number would let words in again.
pub(crate) fn differing(places: &BTreeMap<String, Prose>) -> Vec<String> {
    against(places, &CEILINGS)
}

fn against(places: &BTreeMap<String, Prose>, ceilings: &[(&str, Counts)]) -> Vec<String> {
    let mut broken = Vec::new();
    for (place, prose) in places {
        let most = ceilings.iter().find(|(of, _)| of == place).map_or(Counts::default(), |(_, most)| *most);
        let counts = [prose.people, prose.clauses, prose.trailing, prose.in_messages];
        let others = NAMES.iter().zip(counts).zip(most).filter(|((_, count), most)| count != most);
        broken.extend(others.map(|((name, count), most)| {
            let lower = if count < most { ": lower the ceiling of tests/structure/src/ceilings.rs" } else { "" };
            format!("{place}: {count} {name}, {most} are accepted{lower}")
        }));
        let long = prose.long_percent();
        if long > LONG_LINES_MAX {
            broken.push(format!("{place}: {long:.2} percent of comment lines too long, {LONG_LINES_MAX} are accepted"));
        }
    }
    let gone = ceilings.iter().filter(|(place, _)| !places.contains_key(*place));
    broken.extend(gone.map(|(place, _)| format!("there is a ceiling for the prose of {place}, which is not there")));
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_word_more_or_fewer_than_today_is_told() {
        let places = |prose| [("a.md".to_owned(), prose)].into();
        let prose = Prose { words: 100_000, people: 2, in_messages: 1, ..Prose::default() };
        assert_eq!(against(&places(prose), &[("a.md", [2, 0, 0, 1])]), [""; 0]);
        let broken = ["a.md: 2 people words, 3 are accepted: lower the ceiling of tests/structure/src/ceilings.rs"];
        assert_eq!(against(&places(prose), &[("a.md", [3, 0, 0, 1])]), broken);
        let broken = ["a.md: 2 people words, 1 are accepted"];
        assert_eq!(against(&places(prose), &[("a.md", [1, 0, 0, 1])]), broken);
        let broken = [
            "a.md: 2 people words, 0 are accepted",
            "a.md: 1 such words in messages, 0 are accepted",
            "there is a ceiling for the prose of b.md, which is not there",
        ];
        assert_eq!(against(&places(prose), &[("b.md", [0; 4])]), broken);
    }
}
