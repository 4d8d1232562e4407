//! Figures that documents repeat from docs/performance.md: ratios after their names, rounds, and
//! absolute ones of README.md.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result, ensure};

use crate::files::files_below;

/// The document that `scripts/bench` makes.
const PERFORMANCE: &str = "docs/performance.md";

/// The document with some of its absolute figures.
const README: &str = "README.md";

/// Units of absolute figures in [`README`], each with the columns of the table that have it, and
/// the number of the column's units in one of it.
const UNITS: [(&str, &[&str], f64); 6] = [
    ("Gbit/s", &["Gbit/s"], 1.0),
    ("Mbit/s", &["Gbit/s"], 0.001),
    ("M messages/s", &["1000/s"], 1000.0),
    ("million messages", &["1000/s"], 1000.0),
    ("messages/s", &["1000/s"], 0.001),
    ("us", &["p50 us", "p99 us"], 1.0),
];

/// Ratios with figures in [`README`], at most: three headlines say more than a table.
const HEADLINES: usize = 3;

/// Documents that may have older figures: the history.
const HISTORY: &str = "CHANGELOG.md";

/// Marks and words that may stand between the name of a ratio and its figure.
const BETWEEN: [char; 10] = ['`', ' ', '|', ':', ')', '=', '*', '_', ',', '~'];
const LINKS: [&str; 8] = ["about ", "at ", "is ", "median ", "of ", "ratio ", "the ", "was "];

/// Characters behind a name within which a number with decimals counts as its figure.
const NEAR: usize = 32;

/// Ratio by name: median, least and most, as the table has them.
type Ratios<'a> = BTreeMap<&'a str, [f64; 3]>;

/// Ratios in documents that differ from docs/performance.md, and in the README another number of
/// rounds or more ratios than [`HEADLINES`].
///
/// A ratio is recognized by its name, in backticks or not. The figure behind it is a median, a
/// range or both: `` `name` 0.84``, `` (`name`) | **0.84** (0.64 to 0.86)``, `name: 0.64-0.86`, `name
/// between 0.64 and 0.86`. Another number with decimals near the name is a fault.
///
/// # Errors
///
/// A file cannot be read, or docs/performance.md has no ratios or rounds.
pub(crate) fn differences(workspace: &Path) -> Result<Vec<String>> {
    let read = |file: &Path| fs::read_to_string(workspace.join(file)).with_context(|| file.display().to_string());
    let performance = read(Path::new(PERFORMANCE))?;
    let ratios = ratios(&performance);
    ensure!(!ratios.is_empty(), "{PERFORMANCE} has no ratios");
    let rounds = performance.lines().find_map(|line| line.strip_prefix("- rounds: "));
    let rounds = rounds.with_context(|| format!("{PERFORMANCE} does not tell its rounds"))?;
    let mut broken = Vec::new();
    for document in files_below(workspace)?.iter().filter(|file| file.extension().is_some_and(|it| it == "md")) {
        if [PERFORMANCE, HISTORY].iter().any(|it| document == Path::new(it)) {
            continue;
        }
        for (number, line) in read(document)?.lines().enumerate() {
            broken
                .extend(wrong_figures(line, &ratios).map(|it| format!("{}:{}: {it}", document.display(), number + 1)));
        }
    }
    let readme = read(Path::new(README))?;
    let figures = absolute_figures(&performance);
    for (number, line) in readme.lines().enumerate() {
        let unknown = measured(line).filter(|(figure, unit)| !is_measured(figure, unit, &figures));
        broken.extend(
            unknown.map(|(figure, unit)| format!("{README}:{}: {PERFORMANCE} has no {figure} {unit}", number + 1)),
        );
    }
    let headlines = headlines(&readme, &ratios);
    if headlines > HEADLINES {
        broken.push(format!("{README}: {headlines} ratios with figures, {HEADLINES} may: {PERFORMANCE} has all"));
    }
    if !readme.contains(&format!("of {rounds} rounds")) {
        broken.push(format!("README.md does not say, by {PERFORMANCE}: of {rounds} rounds"));
    }
    Ok(broken)
}

/// Ratios of a document that have a figure behind their name.
fn headlines(document: &str, ratios: &Ratios<'_>) -> usize {
    let lines = document.lines().flat_map(|line| {
        let named = named_ratios(line, ratios);
        let ends: Vec<_> = named.iter().skip(1).map(|(start, _)| *start).chain([line.len()]).collect();
        named.into_iter().zip(ends).map(|((start, name), end)| &line[start + name.len()..end])
    });
    lines.filter(|text| has_decimals(text)).count()
}

/// Figures of the table of contestants, by column.
fn absolute_figures(performance: &str) -> BTreeMap<&str, Vec<f64>> {
    let cells = |line| str::strip_prefix(line, "| ")?.strip_suffix(" |").map(|row| row.split(" | "));
    let mut lines = performance.lines().filter_map(cells).skip_while(|row| row.clone().next() != Some("contestant"));
    let head: Vec<&str> = lines.next().into_iter().flatten().collect();
    let mut figures: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for row in lines {
        for (column, cell) in head.iter().zip(row) {
            figures.entry(column).or_default().extend(cell.parse::<f64>().ok());
        }
    }
    figures
}

/// Numbers of `line` with one of [`UNITS`] behind them, each with the unit.
fn measured(line: &str) -> impl Iterator<Item = (&str, &'static str)> {
    let is_of_number = |letter: char| letter.is_ascii_digit() || letter == '.' || letter == ',';
    let is_begin = move |at: usize| {
        let is_inside = |before: char| is_of_number(before) || before.is_alphanumeric() || before == '_';
        line[at..].starts_with(|first: char| first.is_ascii_digit()) && !line[..at].ends_with(is_inside)
    };
    line.char_indices().map(|(at, _)| at).filter(move |at| is_begin(*at)).filter_map(move |at| {
        let number = &line[at..];
        let number = &number[..number.find(|letter| !is_of_number(letter)).unwrap_or(number.len())];
        let behind = line[at + number.len()..].trim_start_matches(['*', '_', ' ', '\u{a0}']);
        let is_unit = |unit: &str| {
            behind
                .strip_prefix(unit)
                .is_some_and(|rest| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '/'))
        };
        let (unit, ..) = UNITS.iter().find(|(unit, ..)| is_unit(unit))?;
        Some((number.trim_end_matches(['.', ',']), *unit))
    })
}

/// Whether a column with that unit has the figure, with the decimals that it is written with.
fn is_measured(figure: &str, unit: &str, figures: &BTreeMap<&str, Vec<f64>>) -> bool {
    let number = figure.replace(',', "");
    let decimals = number.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let of_unit = UNITS.iter().find(|(it, ..)| *it == unit);
    let mut values = of_unit.into_iter().flat_map(|(_, columns, factor)| {
        columns.iter().filter_map(|column| figures.get(column)).flatten().map(move |value| value / factor)
    });
    values.any(|value| format!("{value:.decimals$}") == number)
}

/// Rows `` | `name` | median | least to most |``.
fn ratios(performance: &str) -> Ratios<'_> {
    let row = |line| {
        let (name, cells) = str::strip_prefix(line, "| `")?.split_once("` |")?;
        let mut cells = cells.split('|').map(str::trim);
        let (median, (least, most)) = (cells.next()?, cells.next()?.split_once(" to ")?);
        Some((name, [median.parse().ok()?, least.parse().ok()?, most.parse().ok()?]))
    };
    performance.lines().filter_map(row).collect()
}

/// Figures at names of ratios in `line` that are others than the table's, or have another form.
fn wrong_figures(line: &str, ratios: &Ratios<'_>) -> impl Iterator<Item = String> {
    let named = named_ratios(line, ratios);
    let mut wrong = Vec::new();
    let mut from = 0;
    for (at, (start, name)) in named.iter().enumerate() {
        if let Some(figure) = figure_before(&line[from..*start]) {
            wrong.push(format!("{figure} is before its name `{name}`: write it behind"));
        }
        let end = named.get(at + 1).map_or(line.len(), |(start, _)| *start);
        let text = &line[start + name.len()..end];
        let (fault, length) = fault_behind(text, &ratios[name]);
        wrong.extend(fault.map(|fault| format!("`{name}` {fault}")));
        from = start + name.len() + length;
    }
    wrong.into_iter()
}

/// Names of ratios that are whole words of `line`, each with its place.
fn named_ratios<'a>(line: &str, ratios: &Ratios<'a>) -> Vec<(usize, &'a str)> {
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let mut named = Vec::new();
    let mut from = 0;
    for word in line.split(|letter: char| !is_of_name(letter)) {
        // An underscore at both ends is emphasis.
        let bare = word.trim_matches('_');
        if let Some((name, _)) = ratios.get_key_value(bare) {
            named.push((from + word.find(bare).unwrap_or(0), *name));
        }
        from += word.len() + line[from + word.len()..].chars().next().map_or(0, char::len_utf8);
    }
    named
}

/// The number with decimals that ends `text`: `` 0.84 (` ``, `0.84 for `.
fn figure_before(text: &str) -> Option<&str> {
    let text = text.trim_end_matches(['`', '(', ' ', '*', '_', '[']);
    let text = ["for", "in", "of"].iter().find_map(|word| text.strip_suffix(word)).unwrap_or(text);
    let text = text.trim_end_matches([' ', '*', '_']);
    let number = text.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '.');
    let number = &text[number.len()..];
    (number.starts_with(|first: char| first.is_ascii_digit()) && number.contains('.')).then_some(number)
}

/// The fault of the figure that `text` begins with, behind a name, and the figure's length.
fn fault_behind(text: &str, values: &[f64; 3]) -> (Option<String>, usize) {
    let mut rest = text.trim_start_matches(BETWEEN);
    while let Some(behind) = LINKS.iter().find_map(|word| rest.strip_prefix(word)) {
        rest = behind.trim_start_matches(BETWEEN);
    }
    let Some((figure, behind)) = Figure::read(rest) else {
        let near: String = text.chars().take(NEAR).collect();
        // The next clause is of something else.
        let near = near.split([';', '(']).next().and_then(|near| near.split(". ").next()).unwrap_or("");
        return (has_decimals(near).then(|| format!("is near a figure that has no known form: {near}")), 0);
    };
    let fault = figure.fault(values).or_else(|| {
        let inner = behind.trim_start_matches(['*', '_', '`', ' ']).strip_prefix('(')?.split(')').next()?;
        let is_other = inner.contains("goal") || inner.contains("bit/s") || !has_decimals(inner);
        (!is_other).then(|| format!("has a range that has no known form: {inner}"))
    });
    (fault, text.len() - behind.len())
}

/// Whether a number with decimals is in `text`.
fn has_decimals(text: &str) -> bool {
    let is_digit = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_digit);
    let bytes = text.as_bytes();
    (1..bytes.len()).any(|at| bytes[at] == b'.' && is_digit(bytes.get(at - 1)) && is_digit(bytes.get(at + 1)))
}

/// Numbers of a figure, as they are written.
#[derive(Debug, PartialEq)]
struct Figure<'a> {
    median: Option<&'a str>,
    range: Option<(&'a str, &'a str)>,
}

impl<'a> Figure<'a> {
    /// The figure that `text` begins with, and the text behind it.
    fn read(text: &'a str) -> Option<(Self, &'a str)> {
        if let Some((range, rest)) = range(text) {
            return Some((Self { median: None, range: Some(range) }, rest));
        }
        let (median, rest) = number(text)?;
        let behind = rest.trim_start_matches([' ', '(', ',', '*', '_', '`', '|', '[']);
        // A space at least, else it is a unit or a list.
        let found = range(behind).filter(|_| behind.len() < rest.len());
        let (range, rest) = found.map_or((None, rest), |(range, rest)| (Some(range), rest));
        Some((Self { median: Some(median), range }, rest))
    }

    /// The numbers that differ from median, least and most.
    fn fault(&self, [median, least, most]: &[f64; 3]) -> Option<String> {
        let (low, high) = self.range.unzip();
        let pairs = [(self.median, median), (low, least), (high, most)];
        let pairs = pairs.into_iter().filter_map(|(number, value)| number.map(|number| (number, value)));
        let (written, right): (Vec<_>, Vec<_>) = pairs
            .map(|(number, value)| {
                let decimals = number.split_once('.').map_or(0, |(_, decimals)| decimals.len());
                (number.to_owned(), format!("{value:.decimals$}"))
            })
            .unzip();
        (written != right).then(|| format!("is {} in {PERFORMANCE}, not {}", right.join(" "), written.join(" ")))
    }
}

/// The number that `text` begins with, without its emphasis, and the text behind both.
fn number(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start_matches(['*', '_']);
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let number = text[..end].trim_end_matches('.');
    let is_number = number.starts_with(|first: char| first.is_ascii_digit());
    is_number.then(|| (number, text[number.len()..].trim_start_matches(['*', '_'])))
}

/// The range that `text` begins with: `0.64 to 0.86`, `0.64-0.86`, `between 0.64 and 0.86`.
fn range(text: &str) -> Option<((&str, &str), &str)> {
    let (inner, separators) = match text.strip_prefix("between ") {
        Some(inner) => (inner, &["and"][..]),
        None => (text, &["to", "-", "–", "—", "..."][..]),
    };
    let (low, rest) = number(inner)?;
    let rest = rest.trim_start();
    let rest = separators.iter().find_map(|separator| rest.strip_prefix(separator))?;
    let (high, rest) = number(rest.trim_start())?;
    Some(((low, high), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
| ratio | median | least to most | near: median, rounds | goal |
|---|---|---|---|---|
| `a_vs_b` | 0.842 | 0.644 to 0.861 | 0.842 of 4 | at least 0.75, met |
| `c_vs_d` | 1.397 | 1.302 to 1.641 | - | - |
| `raw_64` | - | 190.6 | 4.6 |
";

    #[test]
    fn rows_of_ratios_are_read() {
        let expected = [("a_vs_b", [0.842, 0.644, 0.861]), ("c_vs_d", [1.397, 1.302, 1.641])];
        assert_eq!(ratios(TABLE), expected.into());
    }

    #[test]
    fn figures_that_differ_are_found() {
        let ratios = ratios(TABLE);
        let wrong = |line| wrong_figures(line, &ratios).collect::<Vec<_>>();
        for right in [
            "| WRITE (`a_vs_b`) | 0.84 (0.64 to 0.86) |",
            "`c_vs_d`: 1.4, and `a_vs_b` 0.842.",
            "`a_vs_b` and 3",
            "`x` 5",
        ] {
            assert_eq!(wrong(right), [""; 0]);
        }
        assert_eq!(wrong("(`a_vs_b`) | 0.84 (0.65 to 0.86)").len(), 1);
        assert_eq!(wrong("`a_vs_b` 0.8, `c_vs_d` = 1.5"), ["`c_vs_d` is 1.4 in docs/performance.md, not 1.5"]);
    }

    #[test]
    fn ratios_with_a_figure_are_headlines() {
        let document =
            "| WRITE: `a_vs_b` | 0.84 (0.64 to 0.86) |\nAlso `c_vs_d`, `a_vs_b` 0.8 and `c_vs_d` of 4 rounds.";
        assert_eq!(headlines(document, &ratios(TABLE)), 2);
    }

    #[test]
    fn other_forms_of_ranges_and_names_are_compared() {
        let ratios = ratios(TABLE);
        let wrong = |line: &str| wrong_figures(line, &ratios).collect::<Vec<_>>();
        for form in [
            "`a_vs_b` 0.84 (0.64-LAST)",
            "`a_vs_b` 0.84 (0.64–LAST)",
            "`a_vs_b` 0.84, between 0.64 and LAST of it",
            "`a_vs_b` between 0.64 and LAST",
            "`a_vs_b`: 0.64 to LAST",
            "`a_vs_b` | 0.84 | 0.64 – LAST |",
            "| a_vs_b | **0.84** (*0.64* to _LAST_) |",
            "`a_vs_b` **0.84** (**0.64 to LAST**)",
            "**`a_vs_b`** is about LAST0, `c_vs_d` 1.4",
            "c_vs_d (1.30 to 1.64), `a_vs_b` = *LAST0*",
        ] {
            // A median is written as LAST0.
            let right = form.replace("LAST0", "0.84").replace("LAST", "0.86");
            assert_eq!(wrong(&right), [""; 0], "{right}");
            let other = form.replace("LAST0", "0.94").replace("LAST", "0.96");
            assert_eq!(wrong(&other).len(), 1, "{other}");
        }
    }

    #[test]
    fn absolute_figures_are_those_of_a_contestant() {
        let table = "| ratio | Gbit/s |\n| `a_vs_b` | 7.7 |\n\n| contestant | Gbit/s | 1000/s | p50 us | p99 us |\n|---|---|---|---|---|\n\
                     | `raw` | 13.07 | 1399.0 | - | - |\n| `ping` | - | 17.2 | 19.34 | 48.3 |\n";
        let figures = absolute_figures(table);
        let unknown = |line: &str| {
            let unknown = measured(line).filter(|(figure, unit)| !is_measured(figure, unit, &figures));
            unknown.map(|(figure, unit)| format!("{figure} {unit}")).collect::<Vec<_>>()
        };
        for right in [
            "| write | 0.84 (0.64 to 0.86) | 13.1 Gbit/s | **13.07** Gbit/s, 13 Gbit/s |",
            "1.4 M messages/s, 1.399 million messages, 17,200 messages/s",
            "19.3 us and 48 us, at 9 users, 5 x86 us",
        ] {
            assert_eq!(unknown(right), [""; 0], "{right}");
        }
        assert_eq!(unknown("11.2 Gbit/s and 13.07 Gbit/s | 7.7 Gbit/s."), ["11.2 Gbit/s", "7.7 Gbit/s"]);
        assert_eq!(unknown("1.5 M messages/s, 20 us; 13.1 **Gbit/s**"), ["1.5 M messages/s", "20 us"]);
    }

    #[test]
    fn figures_of_another_form_are_faults() {
        let ratios = ratios(TABLE);
        let wrong = |line: &str| wrong_figures(line, &ratios).collect::<Vec<_>>();
        for fault in [
            "0.84 (`a_vs_b`)",
            "0.84 for `a_vs_b`",
            "`a_vs_b` gives us 0.84",
            "| `a_vs_b` | x0.84 |",
            "`a_vs_b` 0.84 (0.64 .. 0.86)",
            "`a_vs_b` 0.84 (0.64 or 0.86)",
        ] {
            assert_eq!(wrong(fault).len(), 1, "{fault}");
        }
        for right in [
            "`a_vs_b` in [performance.md](../performance.md)). At 1.5",
            "`a_vs_b_too` 0.1 and x_a_vs_b 0.2",
            "(`a_vs_b` 0.84), and without: `c_vs_d` | 1.397",
            "`a_vs_b` 0.842 (goal: 1.4); 3.5",
            "`a_vs_b` 0.842 (13.9 Gbit/s), `c_vs_d` 1.40",
        ] {
            assert_eq!(wrong(right), [""; 0], "{right}");
        }
    }
}
