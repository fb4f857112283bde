//! Text in columns of a terminal, where a letter may take no column, one or two.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Columns that the last cell of a row has in any terminal.
const LEAST_LAST_COLUMNS: usize = 8;

/// Returns the columns that a text takes.
pub fn width(text: &str) -> usize {
    text.width()
}

/// Returns a text with spaces behind it, so that it takes so many columns.
pub fn padded(text: &str, columns: usize) -> String {
    let spaces = columns.saturating_sub(width(text));
    format!("{text}{:spaces$}", "")
}

/// Shortens a source such as `host:/path`, or a path, in its middle.
///
/// It keeps the host, the first part of the path if there is room, and as many last parts as fit. If no whole part fits,
/// letters of the end are kept.
pub fn fitted(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let host_end = host_end(text);
    let heads = [first_part_end(text, host_end), host_end];
    let parts = heads
        .iter()
        .find_map(|head| with_last_parts(text.split_at(*head), columns));
    parts.unwrap_or_else(|| with_last_letters(text, host_end, columns))
}

/// Returns the row of a table of which the last cell is fitted into the columns that are left; whole without `columns`.
pub fn fitted_row(before: &str, last: &str, columns: Option<usize>) -> String {
    match columns {
        Some(columns) => {
            let left = columns.saturating_sub(width(before));
            format!("{before}{}", fitted(last, left.max(LEAST_LAST_COLUMNS)))
        }
        None => format!("{before}{last}"),
    }
}

/// Breaks a line between words, so that each part takes at most so many columns, if its words do.
///
/// Further parts stand below the last column of a table, which begins behind two spaces, or are indented by two more columns
/// than the line, if that leaves room for 8 columns and the longest word. A word that is wider than a line is broken between letters.
pub fn wrapped(line: &str, columns: usize) -> Vec<String> {
    if width(line) <= columns || columns == 0 {
        return vec![line.to_owned()];
    }
    let indent = hanging_indent(line, columns);
    let mut lines = Vec::new();
    let mut rest = line.to_owned();
    while width(&rest) > columns {
        let head = first_letters(&rest, columns);
        // A line is not broken in its indent, which would give the same line again.
        let least = if lines.is_empty() { 1 } else { indent + 1 };
        let space = match rest[head.len()..].starts_with(' ') {
            true => Some(head.len()),
            false => head.rfind(' ').filter(|index| *index >= least),
        };
        let first_letter = || rest.chars().next().map_or(0, char::len_utf8);
        let end = space.unwrap_or(head.len().max(first_letter()));
        let next = rest[end..].trim_start().to_owned();
        lines.push(rest[..end].trim_end().to_owned());
        rest = format!("{:indent$}{next}", "");
    }
    lines.push(rest);
    lines.retain(|line| !line.trim().is_empty());
    lines
}

/// Returns the columns before further parts of a broken line.
fn hanging_indent(line: &str, columns: usize) -> usize {
    let leading = line.len() - line.trim_start().len();
    let below_last = line.trim_end().rfind("  ").map(|index| index + 2);
    let below_last = below_last.map(|end| width(&line[..end]));
    let longest = line.split(' ').map(width).max().unwrap_or(0);
    let has_room = |indent: &usize| indent + longest.max(LEAST_LAST_COLUMNS) <= columns;
    let little = [leading + 2, 2];
    let choices = below_last.into_iter().chain(little);
    choices.into_iter().find(has_room).unwrap_or(0)
}

/// Returns the end of `host:` at the begin of a source; 0 without a host.
fn host_end(text: &str) -> usize {
    let host = text.find(':').filter(|colon| !text[..*colon].contains('/'));
    host.map_or(0, |colon| colon + 1)
}

/// Returns the end of the first part of the path behind a host.
fn first_part_end(text: &str, host_end: usize) -> usize {
    let slashes = text[host_end..].len() - text[host_end..].trim_start_matches('/').len();
    let part = host_end + slashes;
    text[part..]
        .find('/')
        .map_or(host_end, |slash| part + slash + 1)
}

/// Returns the head, and the longest end of whole parts that fits behind it.
fn with_last_parts((head, path): (&str, &str), columns: usize) -> Option<String> {
    let room = columns.checked_sub(width(head) + 1)?;
    let mut ends = path.match_indices('/').map(|(index, _)| &path[index..]);
    let end = ends.find(|end| width(end) <= room && end.len() > 1)?;
    Some(format!("{head}…{end}"))
}

fn with_last_letters(text: &str, host_end: usize, columns: usize) -> String {
    let head = first_letters(&text[..host_end], columns / 2);
    let tail_columns = columns.saturating_sub(width(head) + 1);
    format!("{head}…{}", last_letters(text, tail_columns))
}

/// Cuts the end of a text that takes more columns.
pub fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    format!("{}…", first_letters(text, columns.saturating_sub(1)))
}

fn first_letters(text: &str, columns: usize) -> &str {
    let mut left = columns;
    let end = text.char_indices().find(|(_, letter)| {
        let columns = letter.width().unwrap_or(0);
        let is_over = columns > left;
        left = left.saturating_sub(columns);
        is_over
    });
    &text[..end.map_or(text.len(), |(index, _)| index)]
}

fn last_letters(text: &str, columns: usize) -> &str {
    let mut left = columns;
    let mut begin = text.len();
    for (index, letter) in text.char_indices().rev() {
        let columns = letter.width().unwrap_or(0);
        if columns > left {
            break;
        }
        left -= columns;
        begin = index;
    }
    &text[begin..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_source_keeps_its_host_and_whole_parts_of_its_path() {
        assert_eq!(fitted("vm:/usr/share", 13), "vm:/usr/share");
        assert_eq!(fitted("vm:/usr/share/doc/zstd", 14), "vm:/usr/…/zstd");
        assert_eq!(fitted("vm:/usr/share/doc/zstd", 13), "vm:…/doc/zstd");
        assert_eq!(fitted("vm:/usr/share/doc/zstd", 8), "vm:…zstd");
        assert_eq!(fitted("a/b/c/long-name.txt", 18), "a/…/long-name.txt");
        assert_eq!(fitted("logs/12:30/a/b/c", 14), "logs/…/a/b/c");
        let long_host = format!("{}:/x", "h".repeat(30));
        assert_eq!(fitted(&long_host, 14), "hhhhhhh…hhh:/x");
    }

    #[test]
    fn a_chinese_letter_takes_two_columns() {
        let source = "服务器:/数据/客户/照片";
        assert_eq!(width(source), 22);
        for columns in 4..30 {
            let shown = padded(&fitted(source, columns), columns);
            assert_eq!(width(&shown), columns, "{shown:?}");
            assert!(width(&cut(source, columns)) <= columns);
        }
        assert_eq!(fitted(source, 15), "服务器:…/照片");
        assert_eq!(fitted(source, 21), "服务器:/数据/…/照片");
        let row = fitted_row("20261125T185348Z-pwdtl7  ", source, Some(40));
        assert_eq!(row, "20261125T185348Z-pwdtl7  服务器:…/照片");
    }

    #[test]
    fn a_broken_line_loses_no_word_and_stands_below_its_column() {
        assert_eq!(
            wrapped("stored     12 MB of 3 sources, and more", 26),
            [
                "stored     12 MB of 3",
                "           sources, and",
                "           more"
            ]
        );
        assert_eq!(wrapped("  a b c", 6), ["  a b", "c"]);
        let line = "数据 is a long name of   the 照片照片照片照片照片 that nobody broke before";
        for columns in 1..90 {
            let lines = wrapped(line, columns);
            let kept: String = lines.concat().split_whitespace().collect();
            assert_eq!(kept, line.split_whitespace().collect::<String>());
            let widest = lines.iter().map(|line| width(line)).max().unwrap();
            assert!(widest <= columns.max(2), "{columns}: {lines:?}");
        }
    }
}
