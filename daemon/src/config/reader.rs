//! Reads a TOML document key by key and collects everything that is wrong with it, instead of
//! stopping at the first mistake.
//!
//! A [`ConfigSection`] is one table. Each key is requested once, with its default and range; a key
//! of the file that is never requested is unknown. The same calls record the keys ([`Key`]), so
//! that a test can compare the documentation with them.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::{Range, RangeInclusive},
};

use roced_output::escaped;
use toml::{
    Spanned,
    de::{DeArray, DeTable, DeValue},
};

use super::syntax::{excerpt, explained};

/// Most problems of a file that are collected: each costs a walk to its line, and a reload is the
/// control thread's. A file with more of them is no config.
pub(super) const PROBLEMS_MAX: usize = 100;

/// One mistake in a config file. Its display has no control characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigProblem {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Path of the key, such as `device[1].queues[0].worker`; empty when the mistake is not in a
    /// key.
    pub key: String,
    /// The problem and the allowed values.
    pub message: String,
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.line, self.column)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", escaped(&self.key))?;
        }
        f.write_str(&escaped(&self.message))
    }
}

/// A key that the config has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its path without indices, such as `worker.spin_us`.
    pub path: String,
    /// Its default as text; `None` when the key must be there.
    pub default: Option<String>,
    /// Allowed values, with unit, as text.
    pub allowed: String,
}

/// Types that a file spells as one of a few words.
pub(super) trait Choice: Copy + PartialEq + 'static {
    /// Every value with its word.
    const CHOICES: &'static [(&'static str, Self)];

    /// The word for this value.
    fn word(self) -> &'static str {
        let found = Self::CHOICES.iter().find(|(_, choice)| *choice == self);
        found.expect("every value stands in CHOICES").0
    }
}

/// A mistake. Its place is counted later, because each costs a walk to its line.
struct Mistake {
    /// In bytes.
    offset: usize,
    key: String,
    message: String,
}

/// A document being read.
pub(super) struct Reader<'a> {
    text: &'a str,
    problems: RefCell<Vec<Mistake>>,
    keys: RefCell<Vec<Key>>,
}

impl<'a> Reader<'a> {
    /// A reader of the document `text`.
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, problems: RefCell::default(), keys: RefCell::default() }
    }

    /// Reads the whole document by `read`, which receives its top table. A line that is no TOML is
    /// reported once: its possible meaning is not worth a second report.
    pub(super) fn read<T>(&self, read: impl FnOnce(&ConfigSection<'_, 'a>) -> T) -> T {
        let (root, errors) = DeTable::parse_recoverable(self.text);
        let top = ConfigSection::new(self, String::new(), 0..0, root.get_ref());
        let value = read(&top);
        top.refuse_unknown();
        let mut broken = BTreeSet::new();
        for error in errors {
            if broken.len() == PROBLEMS_MAX {
                break;
            }
            let offset = error.span().map_or(self.text.len(), |span| span.start);
            let line = line_around(self.text, offset);
            if broken.insert(line.start) {
                self.problems.borrow_mut().retain(|problem| !line.contains(&problem.offset));
                let message = explained(self.text, &line, offset, error.message());
                self.push(Mistake { offset, key: String::new(), message });
            }
        }
        value
    }

    /// Everything that was wrong, in the order of the file, and the keys that were asked for.
    pub(super) fn finish(self) -> (Vec<ConfigProblem>, Vec<Key>) {
        let mut mistakes = self.problems.into_inner();
        keep_first(&mut mistakes, PROBLEMS_MAX);
        let problem = |Mistake { offset, key, message }| {
            let (line, column) = position(self.text.as_bytes(), offset);
            ConfigProblem { line, column, key, message }
        };
        (mistakes.into_iter().map(problem).collect(), self.keys.into_inner())
    }

    fn refuse(&self, span: &Range<usize>, key: String, message: String) {
        self.push(Mistake { offset: span.start, key, message });
    }

    /// Keeps a mistake, unless enough of them are before it in the file. A line that is no TOML has
    /// one instead of its others, so some more are kept than are reported.
    fn push(&self, mistake: Mistake) {
        let mut mistakes = self.problems.borrow_mut();
        mistakes.push(mistake);
        if mistakes.len() > 4 * PROBLEMS_MAX {
            keep_first(&mut mistakes, 2 * PROBLEMS_MAX);
        }
    }

    fn note(&self, path: &str, default: Option<String>, allowed: String) {
        let path = without_indices(path);
        let mut keys = self.keys.borrow_mut();
        if !keys.iter().any(|key| key.path == path) {
            keys.push(Key { path, default, allowed });
        }
    }
}

/// Keys that have another name than in an earlier version: their section without indices, the old
/// name and the present one.
const RENAMED: [(&str, &str, &str); 5] = [
    ("device", "held_packets", "out_of_order_packets"),
    ("limits", "clients_of_user", "clients under [limits.account]"),
    ("limits.cm", "ids_of_user", "ids_of_account"),
    ("limits.cm", "channels_of_user", "channels_of_account"),
    ("limits.cm", "groups_of_user", "groups_of_account"),
];

/// A table of the document.
pub(super) struct ConfigSection<'s, 'a> {
    reader: &'s Reader<'a>,
    path: String,
    span: Range<usize>,
    table: &'s DeTable<'a>,
    asked: RefCell<BTreeSet<String>>,
}

impl<'s, 'a> ConfigSection<'s, 'a> {
    fn new(reader: &'s Reader<'a>, path: String, span: Range<usize>, table: &'s DeTable<'a>) -> Self {
        Self { reader, path, span, table, asked: RefCell::default() }
    }

    /// Says that the value of `key`, or the whole section where the key is missing, is wrong.
    pub(super) fn refuse(&self, key: &str, message: impl Into<String>) {
        let span = self.table.get(key).map_or(self.span.clone(), Spanned::span);
        self.reader.refuse(&span, self.path_of(key), message.into());
    }

    /// The table `key`, read by `read`; an absent one is read as if it were empty.
    pub(super) fn section<T>(&self, key: &str, read: impl FnOnce(&ConfigSection<'_, 'a>) -> T) -> T {
        let empty = DeTable::new();
        let (table, span) = match self.take(key) {
            None => (&empty, self.span.clone()),
            Some(value) => match value.get_ref() {
                DeValue::Table(table) => (table, value.span()),
                other => {
                    self.refuse(key, format!("{} where a table [{key}] belongs", other.type_str()));
                    (&empty, value.span())
                }
            },
        };
        let section = ConfigSection::new(self.reader, self.path_of(key), span, table);
        let value = read(&section);
        section.refuse_unknown();
        value
    }

    /// The tables `[[key]]`, each read by `read`.
    pub(super) fn sections<T>(&self, key: &str, mut read: impl FnMut(&ConfigSection<'_, 'a>) -> T) -> Vec<T> {
        let Some(value) = self.take(key) else { return Vec::new() };
        let Some(array) = value.get_ref().as_array() else {
            self.refuse(key, format!("{} where sections [[{key}]] belong", value.get_ref().type_str()));
            return Vec::new();
        };
        let mut values = Vec::new();
        for (index, element) in array.iter().enumerate() {
            let path = format!("{}[{index}]", self.path_of(key));
            match element.get_ref() {
                DeValue::Table(table) => {
                    let section = ConfigSection::new(self.reader, path, element.span(), table);
                    values.push(read(&section));
                    section.refuse_unknown();
                }
                other => {
                    let message = format!("{} where a table belongs", other.type_str());
                    self.reader.refuse(&element.span(), path, message);
                }
            }
        }
        values
    }

    /// The elements of the array `key` with their own paths, or `None` when it is absent or no
    /// array.
    pub(super) fn array(&self, key: &str) -> Option<&'s DeArray<'a>> {
        self.take(key)?.get_ref().as_array()
    }

    /// The section that element `index` of the array `key` is, if it is a table.
    pub(super) fn element(&self, key: &str, index: usize) -> Option<ConfigSection<'s, 'a>> {
        let element = self.table.get(key)?.get_ref().as_array()?.get(index)?;
        let table = element.get_ref().as_table()?;
        Some(ConfigSection::new(self.reader, format!("{}[{index}]", self.path_of(key)), element.span(), table))
    }

    /// Says that element `index` of the array `key` is wrong.
    pub(super) fn refuse_element(&self, key: &str, index: usize, message: impl Into<String>) {
        let element = self.table.get(key).and_then(|value| value.get_ref().as_array()?.get(index));
        let span = element.map_or(self.span.clone(), Spanned::span);
        self.reader.refuse(&span, format!("{}[{index}]", self.path_of(key)), message.into());
    }

    /// A whole number with a unit (may be empty).
    pub(super) fn number<N: NumberField>(&self, key: &str, unit: &str, default: N, range: RangeInclusive<N>) -> N {
        let allowed = with_unit(format!("{} to {}", range.start(), range.end()), unit);
        self.reader.note(&self.path_of(key), Some(default.to_string()), allowed.clone());
        self.integer(key, &allowed, |number| range.contains(&number)).unwrap_or(default)
    }

    /// A whole number that need not be there.
    pub(super) fn optional_number<N: NumberField>(
        &self,
        key: &str,
        unit: &str,
        absent: &str,
        range: RangeInclusive<N>,
    ) -> Option<N> {
        let allowed = with_unit(format!("{} to {}", range.start(), range.end()), unit);
        self.reader.note(&self.path_of(key), Some(absent.to_owned()), allowed.clone());
        self.integer(key, &allowed, |number| range.contains(&number))
    }

    /// A whole number that must be there.
    pub(super) fn required_number<N: NumberField>(&self, key: &str, range: RangeInclusive<N>) -> Option<N> {
        let allowed = format!("{} to {}", range.start(), range.end());
        self.reader.note(&self.path_of(key), None, allowed.clone());
        self.require(key, &allowed)?;
        self.integer(key, &allowed, |number| range.contains(&number))
    }

    /// A table of numbers by numbers, such as `{ 26 = 3 }`, each in its range.
    pub(super) fn number_table<N: NumberField>(
        &self,
        key: &str,
        allowed: &str,
        keys: RangeInclusive<u8>,
        values: RangeInclusive<N>,
    ) -> BTreeMap<u8, N> {
        self.note(key, "{}", allowed);
        let Some(value) = self.take(key).map(Spanned::get_ref) else { return BTreeMap::new() };
        let Some(table) = value.as_table() else {
            self.refuse(key, format!("{} where a table belongs: it must be {allowed}", value.type_str()));
            return BTreeMap::new();
        };
        let entry = |name: &Spanned<_>, value: &Spanned<DeValue<'_>>| {
            let name: &str = AsRef::as_ref(name.get_ref());
            // The same number has no other spelling.
            let number = name.parse().ok().filter(|number: &u8| keys.contains(number) && number.to_string() == name)?;
            let value = value.get_ref().as_integer()?;
            let value = N::try_from(u64::from_str_radix(value.as_str(), value.radix()).ok()?).ok()?;
            values.contains(&value).then_some((number, value))
        };
        let mut entries = BTreeMap::new();
        for (name, value) in table {
            match entry(name, value) {
                Some((number, value)) => drop(entries.insert(number, value)),
                None => {
                    let path = format!("{}.{}", self.path_of(key), excerpt(name.get_ref()));
                    self.reader.refuse(&name.span(), path, format!("not allowed: it must be {allowed}"));
                }
            }
        }
        entries
    }

    /// A power of two with a unit.
    pub(super) fn power_of_two(&self, key: &str, unit: &str, default: u32, range: RangeInclusive<u32>) -> u32 {
        let allowed = with_unit(format!("a power of two, {} to {}", range.start(), range.end()), unit);
        self.reader.note(&self.path_of(key), Some(default.to_string()), allowed.clone());
        self.integer(key, &allowed, |number: u32| range.contains(&number) && number.is_power_of_two())
            .unwrap_or(default)
    }

    /// Permission bits, written in octal.
    pub(super) fn permissions(&self, key: &str, default: u32, range: RangeInclusive<u32>) -> u32 {
        let allowed = format!("0o{:o} to 0o{:o}", range.start(), range.end());
        self.reader.note(&self.path_of(key), Some(format!("0o{default:o}")), allowed.clone());
        self.integer(key, &allowed, |number| range.contains(&number)).unwrap_or(default)
    }

    /// One of a few words.
    pub(super) fn choice<C: Choice>(&self, key: &str, default: C) -> C {
        let words: Vec<String> = C::CHOICES.iter().map(|(word, _)| format!("{word:?}")).collect();
        let allowed = words.join(", ");
        self.reader.note(&self.path_of(key), Some(format!("{:?}", default.word())), allowed.clone());
        let Some(text) = self.string(key, &allowed) else { return default };
        if let Some((_, choice)) = C::CHOICES.iter().find(|(word, _)| *word == text) {
            return *choice;
        }
        self.refuse(key, format!("{:?} is not one of {allowed}", excerpt(text)));
        default
    }

    /// A text that `check` accepts. `default` is `None` if the key is optional; `absent` describes
    /// its absence.
    pub(super) fn text(&self, key: &str, default: Option<&str>, absent: &str, rule: TextRule) -> Option<String> {
        let shown = default.map_or(absent.to_owned(), |default| format!("{default:?}"));
        self.reader.note(&self.path_of(key), Some(shown), rule.allowed.to_owned());
        self.checked_text(key, rule).or(default.map(str::to_owned))
    }

    /// A text that must be there.
    pub(super) fn required_text(&self, key: &str, rule: TextRule) -> Option<String> {
        self.reader.note(&self.path_of(key), None, rule.allowed.to_owned());
        self.require(key, rule.allowed)?;
        self.checked_text(key, rule)
    }

    /// Records a key that the caller reads itself.
    pub(super) fn note(&self, key: &str, default: &str, allowed: &str) {
        self.reader.note(&self.path_of(key), Some(default.to_owned()), allowed.to_owned());
    }

    /// The value of `key`; it counts as asked for.
    pub(super) fn take(&self, key: &str) -> Option<&'s Spanned<DeValue<'a>>> {
        self.asked.borrow_mut().insert(key.to_owned());
        self.table.get(key)
    }

    /// Reports every key that was never requested.
    pub(super) fn refuse_unknown(self) {
        let asked = self.asked.borrow();
        let section = without_indices(&self.path);
        let unknown = self.table.keys().filter(|key| !asked.contains(key.get_ref().as_ref()));
        let mut unknown: Vec<_> = unknown.collect();
        // A table has its keys by name.
        unknown.sort_by_key(|key| key.span().start);
        for key in unknown.into_iter().take(PROBLEMS_MAX) {
            let renamed = RENAMED.iter().find(|(of, old, _)| *of == section && old == key.get_ref());
            let message = renamed.map_or_else(
                || format!("unknown key; known here: {}", Vec::from_iter(asked.iter().map(String::as_str)).join(", ")),
                |(_, _, new)| format!("this key is called {new} now"),
            );
            self.reader.refuse(&key.span(), self.path_of(key.get_ref()), message);
        }
    }

    fn path_of(&self, key: &str) -> String {
        let key = excerpt(key);
        if self.path.is_empty() { key } else { format!("{}.{key}", self.path) }
    }

    fn require(&self, key: &str, allowed: &str) -> Option<()> {
        if self.take(key).is_none() {
            self.refuse(key, format!("missing; it must be {allowed}"));
            return None;
        }
        Some(())
    }

    fn integer<N: NumberField>(&self, key: &str, allowed: &str, good: impl FnOnce(N) -> bool) -> Option<N> {
        let value = self.take(key)?.get_ref();
        let DeValue::Integer(integer) = value else {
            self.refuse(key, format!("{} where a whole number belongs: {allowed}", value.type_str()));
            return None;
        };
        let number =
            u64::from_str_radix(integer.as_str(), integer.radix()).ok().and_then(|number| N::try_from(number).ok());
        let number = number.filter(|number| good(*number));
        if number.is_none() {
            self.refuse(key, format!("{} is not allowed: it must be {allowed}", excerpt(&integer.to_string())));
        }
        number
    }

    fn string(&self, key: &str, allowed: &str) -> Option<&'s str> {
        let value = self.take(key)?.get_ref();
        if value.as_str().is_none() {
            self.refuse(key, format!("{} where a string belongs: {allowed}", value.type_str()));
        }
        value.as_str()
    }

    fn checked_text(&self, key: &str, rule: TextRule) -> Option<String> {
        let text = self.string(key, rule.allowed)?;
        if (rule.holds)(text) {
            return Some(text.to_owned());
        }
        self.refuse(key, format!("{:?} is not allowed: it must be {}", excerpt(text), rule.allowed));
        None
    }
}

/// Rule of a text.
#[derive(Clone, Copy)]
pub(super) struct TextRule {
    /// In words, after "it must be".
    pub(super) allowed: &'static str,
    /// The same as a test.
    pub(super) holds: fn(&str) -> bool,
}

/// Unsigned numbers of the config.
pub(super) trait NumberField: Copy + PartialOrd + fmt::Display + TryFrom<u64> {}
impl<N: Copy + PartialOrd + fmt::Display + TryFrom<u64>> NumberField for N {}

fn with_unit(range: String, unit: &str) -> String {
    if unit.is_empty() { range } else { format!("{range} {unit}") }
}

fn without_indices(path: &str) -> String {
    path.split('.').map(|part| part.split('[').next().unwrap_or(part)).collect::<Vec<_>>().join(".")
}

/// The first mistakes of a file, in its order.
fn keep_first(mistakes: &mut Vec<Mistake>, count: usize) {
    mistakes.sort_by_key(|mistake| mistake.offset);
    mistakes.truncate(count);
}

/// The line with the byte at `offset`, with its end.
fn line_around(text: &str, offset: usize) -> Range<usize> {
    let (before, behind) = text.as_bytes().split_at(offset.min(text.len()));
    let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
    let end = behind.iter().position(|byte| *byte == b'\n').map_or(text.len(), |newline| offset + newline + 1);
    start..end
}

/// Line and column, both from 1, of the byte at `offset`.
pub(super) fn position(text: &[u8], offset: usize) -> (usize, usize) {
    let before = &text[..offset.min(text.len())];
    let line_start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    (line, String::from_utf8_lossy(&before[line_start..]).chars().count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_counts_characters_of_its_line() {
        let text = "a = 1\n# ü\nü = 2";
        assert_eq!(position(text.as_bytes(), 0), (1, 1));
        assert_eq!(position(text.as_bytes(), text.find('2').expect("there")), (3, 5));
        assert_eq!(position(text.as_bytes(), 1000), (3, 6));
    }

    #[test]
    fn a_broken_line_is_reported_once_and_the_rest_is_read_on() {
        let reader = Reader::new("a = 1\na = 2\nb = = 3\nc = 'x'\n");
        reader.read(|top| {
            top.number("a", "", 0u32, 0..=9);
            top.number("b", "", 0u32, 0..=9);
            top.number("c", "", 0u32, 0..=9);
        });
        let lines: Vec<usize> = reader.finish().0.iter().map(|problem| problem.line).collect();
        assert_eq!(lines, [2, 3, 4]);
    }
}
