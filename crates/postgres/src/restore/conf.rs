//! Parses the configuration files of a server, and adds settings.

/// Names of the configuration files in a data directory.
pub const FILES: [&str; 3] = ["postgresql.conf", "pg_hba.conf", "pg_ident.conf"];

/// Returns the settings and include directives of a configuration file, in order: names in lower
/// case, and values.
pub fn settings(text: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(text);
    text.lines()
        .filter_map(assignment)
        .map(|(name, value)| (name.to_ascii_lowercase(), unquoted(value)))
        .collect()
}

/// Returns the name and the raw value of a line that has a setting.
fn assignment(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start();
    let end = line
        .find(|c: char| !(c.is_ascii_alphanumeric() || "_.$".contains(c)))
        .unwrap_or(line.len());
    let (name, rest) = line.split_at(end);
    let rest = rest.trim_start();
    let value = rest.strip_prefix('=').unwrap_or(rest).trim();
    (!name.is_empty()).then_some((name, value))
}

/// Returns the text in quotes, or the text up to the first space.
fn unquoted(value: &str) -> String {
    let Some(inner) = value.strip_prefix('\'') else {
        return value
            .split([' ', '\t', '#'])
            .next()
            .unwrap_or_default()
            .to_owned();
    };
    let mut text = String::new();
    let mut chars = inner.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\'' if chars.peek() != Some(&'\'') => break,
            '\'' | '\\' => text.extend(chars.next()),
            c => text.push(c),
        }
    }
    text
}

/// Quotes a value as the server does in `postgresql.auto.conf`: quotes and backslashes doubled.
fn quoted_value(value: &str) -> String {
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "''"))
}

/// Returns the text of a configuration file with these settings. The server reads each value as it is given.
pub fn render(settings: &[(String, String)]) -> String {
    let lines = settings
        .iter()
        .map(|(name, value)| format!("{name} = {}\n", quoted_value(value)));
    lines.collect()
}

/// Returns the text of `postgresql.auto.conf` with more settings. Targets of an earlier recovery
/// become comments (rule 32).
pub fn amend(old: &[u8], settings: &[(String, String)], backup: &str) -> Vec<u8> {
    let mut text = Vec::with_capacity(old.len() + 512);
    for line in old.split_inclusive(|c| *c == b'\n') {
        if is_target(line) {
            text.push(b'#');
        }
        text.extend(line);
    }
    if !text.is_empty() && !text.ends_with(b"\n") {
        text.push(b'\n');
    }
    text.extend(format!("# set by the restore of backup {backup}\n").bytes());
    text.extend(render(settings).bytes());
    text
}

/// Returns whether the line sets a recovery target.
fn is_target(line: &[u8]) -> bool {
    let line = String::from_utf8_lossy(line);
    let name = assignment(&line).map(|(name, _)| name.to_ascii_lowercase());
    name.is_some_and(|name| name == "recovery_target" || name.starts_with("recovery_target_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_as_the_server_finds_them() {
        let text =
            b"#a = 1\n a = 'x'\nA  'it''s \\'here\\'' # why\nb=3#x\nc = ''\nd = on\n  # d = off\n";
        let found: Vec<_> = settings(text)
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(found, ["a=x", "a=it's 'here'", "b=3", "c=", "d=on"]);
    }

    #[test]
    fn earlier_targets_become_comments_and_values_are_quoted() {
        let old = b"# Do not edit\nRecovery_target_time = 'x'\nrecovery_target_timelines = 1\nwork_mem = 1";
        let new = amend(
            old,
            &[("restore_command".into(), r"cp 'a\b' %p".into())],
            "ID",
        );
        assert_eq!(
            String::from_utf8(new).unwrap(),
            "# Do not edit\n#Recovery_target_time = 'x'\n#recovery_target_timelines = 1\nwork_mem = 1\n\
             # set by the restore of backup ID\nrestore_command = 'cp ''a\\\\b'' %p'\n"
        );
    }

    #[test]
    fn amended_settings_are_read_back() {
        for text in ["", "a", "it's", r"\\x\'", "with space # no comment", "'"] {
            let conf = amend(b"", &[("x".into(), text.into())], "ID");
            assert_eq!(settings(&conf), [("x".to_owned(), text.to_owned())]);
        }
    }
}
