//! Any bytes are read as a list of members without harm, with a seal that fits: a fuzzer does not find one.
#![no_main]

use fullbore_format::members::Members;
use fullbore_format::seal::seal;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = Members::parse(bytes, "the list");
    let mut sealed = bytes.to_vec();
    sealed.extend(format!("\n\"blake3\": \"{}\"\n}}\n", blake3::hash(bytes).to_hex()).into_bytes());
    if let Ok(members) = Members::parse(&sealed, "the list") {
        let again = seal(&members).unwrap();
        assert_eq!(Members::parse(&again, "the list").unwrap(), members);
    }
});
