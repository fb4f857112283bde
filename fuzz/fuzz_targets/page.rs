//! Any columns are read as a page without harm, and a page that was read is written and read back as the same.
#![no_main]

use fullbore_format::page::ManifestPage;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(page) = ManifestPage::from_columns(bytes) {
        let stored = page.encode().unwrap();
        assert_eq!(ManifestPage::decode(&stored).unwrap(), page);
    }
    let _ = ManifestPage::decode(bytes);
});
