use super::*;
use proptest::prelude::*;
use std::sync::Arc;

const TEXT: &[u8] = b"user::rwx,user:1000:r--,group::r-x,group:4294967294:-w-,mask::r-x,other::r--";

/// A system with the users and groups of one list, by name and number.
struct Names(Vec<(&'static str, u32)>);

impl AclNames for Names {
    fn name(&self, _: bool, number: u32) -> Arc<str> {
        let found = self.0.iter().find(|(_, known)| *known == number);
        found.map_or("", |(name, _)| *name).into()
    }
    fn number(&self, _: bool, name: &str) -> Option<u32> {
        let found = self.0.iter().find(|(known, _)| *known == name);
        found.map(|(_, number)| *number)
    }
}

fn nobody() -> Names {
    Names(Vec::new())
}

fn bytes(text: &[u8]) -> Vec<u8> {
    local_list(text, &nobody(), true).unwrap().raw
}

#[test]
fn text_becomes_the_bytes_of_the_system_and_text_again() {
    let raw = bytes(TEXT);
    assert_eq!(raw[..12], [2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255]);
    assert_eq!(raw[12..20], [2, 0, 4, 0, 0xe8, 3, 0, 0]);
    assert!(is_expressible(&raw));
    assert_eq!(text_of(&raw, &nobody()), TEXT);
    assert_eq!(tar_text(TEXT).unwrap(), TEXT);
    assert_eq!(local_list(&raw, &nobody(), false).unwrap().raw, raw);
}

#[test]
fn rights_go_to_the_name_that_had_them() {
    let before = Names(vec![("joe", 1000), ("domain users", 70)]);
    let raw = bytes(b"u::rw-,u:1000:r--,u:5:r--,g::---,g:70:-w-,m::rw-,o::---");
    let mut xattrs = vec![
        (ACCESS_LIST.to_vec(), raw.clone()),
        (b"user.a".to_vec(), raw.clone()),
    ];
    name_lists(&mut xattrs, &before);
    let text = xattrs[0].1.clone();
    let expected: &[u8] = b"user::rw-,user:joe:r--:1000,user:5:r--,group::---,group:domain\\040users:-w-:70,mask::rw-,other::---";
    assert_eq!(text, expected);
    assert_eq!(xattrs[1].1, raw, "other attributes stay");
    let here = Names(vec![("joe", 2000), ("mallory", 1000), ("domain users", 70)]);
    let local = local_list(&text, &here, false).unwrap();
    assert_eq!(
        local.raw,
        bytes(b"u::rw-,u:2000:r--,u:5:r--,g::---,g:70:-w-,m::rw-,o::---")
    );
    assert!(local.unknown.is_empty());
    assert_eq!(local_list(&text, &here, true).unwrap().raw, raw);
    let elsewhere = local_list(&text, &Names(vec![("joe", 3)]), false).unwrap();
    assert_eq!(elsewhere.unknown, ["domain users"]);
    let tar = tar_text(&text).unwrap();
    assert!(!tar.ends_with(b":1000") && tar.windows(9).any(|part| part == b"user:joe:"));
    local_list(&tar, &nobody(), false).unwrap_err();
}

#[test]
fn lists_are_compared_by_names_where_both_have_them() {
    let one = b"user::rw-,user:joe:r--:1000,other::---";
    let same = b"other::---,user::rw-,user:joe:r--:2000";
    assert!(is_same_list(one, same, false) && !is_same_list(one, same, true));
    assert!(is_same_list(
        one,
        b"user::rw-,user:1000:r--,other::---",
        false
    ));
    assert!(!is_same_list(
        one,
        b"user::rw-,user:joe:rw-:1000,other::---",
        false
    ));
    assert!(!is_same_list(
        one,
        b"user::rw-,user:eve:r--:1000,other::---",
        false
    ));
    assert!(!is_same_list(one, b"user::rw-,other::---", false));
    assert!(!is_same_list(one, b"x", false));
}

#[test]
fn other_spellings_mean_the_same() {
    let spelt = b"g::r-x\nu::rwx\nuser:joe:r--:1000\ngroup:x:-w-:4294967294\nmask:r-x\ndefault:other::r--\n";
    assert_eq!(bytes(spelt), bytes(TEXT));
    let blanks = b"user::rwx  user:1000:r-- group::r-x\tgroup:4294967294:-w- mask::r-x other::r--";
    assert_eq!(bytes(blanks), bytes(TEXT));
}

#[test]
fn a_name_without_a_number_is_not_guessed() {
    for text in [
        &b"user::rwx,user:joe:r--"[..],
        b"user::rwx,user:joe:r--:bob",
    ] {
        for is_numeric in [false, true] {
            local_list(text, &nobody(), is_numeric).unwrap_err();
        }
    }
}

#[test]
fn without_a_list_the_group_keeps_its_own_bits() {
    assert_eq!(rights_of_group(TEXT), 5);
    assert_eq!(rights_of_group(&bytes(TEXT)), 5);
    assert_eq!(rights_of_group(b"u::rw-,u:joe:rwx,g::---,m::rwx,o::---"), 0);
    assert_eq!(rights_of_group(b"?"), 0);
}

#[test]
fn names_may_hold_blanks_as_they_are_or_escaped() {
    let names = Names(vec![("domain users", u32::MAX - 1)]);
    for name in ["domain users", "domain\\040users", "d\\157main users"] {
        let text =
            format!("user::rwx,user:1000:r--,group::r-x,group:{name}:-w-,mask::r-x,other::r--");
        let found = local_list(text.as_bytes(), &names, false).unwrap();
        assert_eq!(found.raw, bytes(TEXT), "{name}");
    }
    assert_eq!(unescaped("a\\40b\\400\\").as_deref(), Some("a\\40b\\400\\"));
    assert_eq!(unescaped("\\377"), None);
}

#[test]
fn text_that_is_not_a_list_is_malformed() {
    for bad in [
        &b""[..],
        b"user",
        b"user::rwq",
        b"owner@:r:allow",
        b"mask:5:r--",
        b"u:1:r:2:3:4:5",
        b"\xff",
    ] {
        assert_eq!(parse(bad), None, "{bad:?}");
        assert_eq!(tar_text(bad), None, "{bad:?}");
    }
}

#[test]
fn bytes_that_text_would_change_are_not_expressible() {
    let raw = bytes(TEXT);
    for (index, value) in [(0, 3), (4, 3), (6, 8), (8, 0), (5, 1)] {
        let mut bad = raw.clone();
        bad[index] = value;
        assert!(!is_expressible(&bad), "{index}");
    }
    assert!(
        !is_expressible(&raw[..raw.len() - 1])
            && !is_expressible(&raw[..4])
            && !is_expressible(b"")
    );
}

proptest! {
    #[test]
    fn every_name_comes_back(name in "[^\0]{1,12}", number: u32) {
        let who = Who { name: Cow::Borrowed(&name), number: Some(number) };
        let entry = AclEntry { tag: NAMED_USER, permissions: 5, who: Some(who) };
        let mut text = Vec::new();
        write_entry(&entry, true, &mut text);
        prop_assert_eq!(parse(&text), Some(vec![entry]));
        let tar = tar_text(&text).unwrap();
        let entries = parse(&tar).unwrap();
        prop_assert_eq!(&entries[0].who.as_ref().unwrap().name, &name);
    }
}
