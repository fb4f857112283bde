//! Any columns are read as a page without harm, and a page that was read is written and read back as the same.
#![no_main]

use fullbore_format::{
    page::{ManifestPage, Record, decode_entries, encode_entries},
    root::Lists,
};
use libfuzzer_sys::fuzz_target;

/// Entries that were read are sent to another host and arrive as they are.
fn send_entries(records: &[Record]) {
    let entries = records.iter().map(|record| (&record.entry, &record.state));
    let stored = encode_entries(entries.clone()).unwrap();
    let arrived = decode_entries(&stored, usize::MAX).unwrap();
    assert!(arrived.iter().map(|(entry, state)| (entry, state)).eq(entries));
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok(page) = ManifestPage::from_columns(bytes) {
        let stored = page.encode().unwrap();
        assert_eq!(ManifestPage::decode(&stored).unwrap(), page);
        send_entries(&page.records);
    }
    let _ = ManifestPage::decode(bytes);
    if let Ok(lists) = Lists::of_page(bytes) {
        assert_eq!(Lists::of_page(&lists.page("").unwrap()).unwrap(), lists);
    }
});
