//! Text in columns of a terminal, where a letter may take no column, one or two.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Returns the columns that a text takes.
pub fn width(text: &str) -> usize {
    text.width()
}

/// Returns a text with spaces behind it, so that it takes so many columns.
pub fn padded(text: &str, columns: usize) -> String {
    let spaces = columns.saturating_sub(width(text));
    format!("{text}{:spaces$}", "")
}

/// Shortens a source such as `host:/path` in its middle, so that its host and the end of its path are seen.
pub fn shortened(source: &str, columns: usize) -> String {
    if width(source) <= columns {
        return source.to_owned();
    }
    let head_end = source.find(':').map_or(0, |index| index + 1);
    let head = first_letters(&source[..head_end], columns / 2);
    let tail_columns = columns.saturating_sub(width(head) + 1);
    format!("{head}…{}", last_letters(source, tail_columns))
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
    fn a_long_source_keeps_its_host_and_the_end_of_its_path() {
        assert_eq!(shortened("vm:/usr/share", 13), "vm:/usr/share");
        assert_eq!(shortened("vm:/usr/share/doc/zstd", 14), "vm:…e/doc/zstd");
        let long_host = format!("{}:/x", "h".repeat(30));
        assert_eq!(shortened(&long_host, 14), "hhhhhhh…hhh:/x");
    }

    #[test]
    fn a_chinese_letter_takes_two_columns() {
        let source = "服务器:/数据/客户/照片";
        assert_eq!(width(source), 22);
        for columns in 4..30 {
            let shown = padded(&shortened(source, columns), columns);
            assert_eq!(width(&shown), columns, "{shown:?}");
            assert!(width(&cut(source, columns)) <= columns);
        }
        assert_eq!(shortened(source, 15), "服务器:…户/照片");
    }
}
