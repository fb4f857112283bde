//! Addresses of pages, relative to the directory of all pages.

use crate::http::request::encoded;

/// Returns the address of a page with the fields of its query.
pub(super) fn link(page: &str, fields: &[(&str, &[u8])]) -> String {
    let fields: Vec<_> = fields
        .iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| format!("{name}={}", encoded(value)))
        .collect();
    match fields.is_empty() {
        true => page.to_owned(),
        false => format!("{page}?{}", fields.join("&")),
    }
}

/// Returns the address of a page about a repository.
pub(super) fn of_place(page: &str, repository: usize, fields: &[(&str, &[u8])]) -> String {
    let number = repository.to_string();
    let mut all = vec![("r", number.as_bytes())];
    all.extend_from_slice(fields);
    link(page, &all)
}

/// Returns the address of a page about a path of a backup.
pub(super) fn of_path(page: &str, repository: usize, backup: &str, path: &[u8]) -> String {
    of_place(page, repository, &[("b", backup.as_bytes()), ("d", path)])
}
