//! Any bytes are read as a root without harm, with a seal that fits: a fuzzer does not find one.
#![no_main]

use fullbore::format::{root::Root, seal::seal};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = Root::open(bytes, "the root");
    let mut sealed = bytes.to_vec();
    sealed.extend(format!("\n\"blake3\": \"{}\"\n}}\n", blake3::hash(bytes).to_hex()).into_bytes());
    if let Ok(root) = Root::open(&sealed, "the root") {
        assert_eq!(Root::open(&seal(&root).unwrap(), "the root").unwrap(), root);
    }
});
