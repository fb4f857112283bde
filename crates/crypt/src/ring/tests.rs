use super::*;
use crate::random_author;

fn parsed(text: &str) -> Result<KeyRing> {
    KeyRing::parse(text, "the key")
}

#[test]
fn a_ring_is_read_as_it_was_written_and_never_printed() {
    let ring = KeyRing::random().unwrap().rotated().unwrap();
    let text = ring.to_text();
    assert_eq!(*parsed(&text).unwrap().to_text(), *text);
    assert_eq!(ring.access(), Access::Read);
    assert_eq!(ring.newest().number(), 2);
    let author = random_author().unwrap();
    let put = ring.for_putting(author);
    assert_eq!(put.access(), Access::Put);
    assert!(!put.to_text().contains(IDENTITY));
    let read = parsed(&put.to_text()).unwrap();
    assert_eq!((read.access(), read.author()), (Access::Put, author));
    assert_eq!(*read.to_text(), *put.to_text());
    for number in ["", "0000000000000000", "1", "00000000000000AB"] {
        let text = put.to_text().replace(&author.to_string(), number);
        assert!(parsed(&text).is_err(), "{number:?}");
    }
    assert!(put.rotated().is_err());
    for secret in text
        .split_whitespace()
        .filter(|word| word.len() >= 60 && !word.starts_with("age1"))
    {
        assert!(!format!("{ring:?}").contains(secret));
    }
}

#[test]
fn what_is_not_a_ring_is_refused() {
    let ring = KeyRing::random().unwrap().rotated().unwrap();
    let text = ring.to_text();
    let other = KeyRing::random().unwrap().to_text();
    let lines: Vec<_> = text.lines().collect();
    let without = |index: usize| {
        let kept: Vec<_> = lines
            .iter()
            .enumerate()
            .filter(|(line, _)| *line != index)
            .collect();
        kept.iter()
            .map(|(_, line)| format!("{line}\n"))
            .collect::<String>()
    };
    for line in 1..lines.len() {
        // Without its generation an identity belongs to the one before, or to none.
        let kind = parsed(&without(line)).map_err(|error| error.kind).err();
        assert_eq!(kind, Some(ErrorKind::Corrupt), "without line {line}");
    }
    let swapped = text.replace(lines[3], other.lines().nth(3).unwrap());
    assert!(
        parsed(&swapped).is_err(),
        "an identity of another repository"
    );
    assert!(parsed("").is_err());
    let newer = format!("{}# fullbore-more: x\n", *text);
    assert_eq!(parsed(&newer).unwrap_err().kind, ErrorKind::Unsupported);
}

#[test]
fn a_fingerprint_is_that_of_all_generations_and_is_read_as_people_write_it() {
    let ring = KeyRing::random().unwrap();
    let fingerprint = ring.fingerprint();
    assert_eq!(ring.rotated().unwrap().fingerprint(), fingerprint);
    assert_eq!(
        ring.for_putting(random_author().unwrap()).fingerprint(),
        fingerprint
    );
    assert_ne!(KeyRing::random().unwrap().fingerprint(), fingerprint);
    assert!(!ring.to_text().contains(&fingerprint.replace('-', "")));
    let plain = fingerprint.replace('-', "").to_ascii_uppercase();
    for text in [&fingerprint, &plain] {
        assert_eq!(parse_fingerprint(text).as_ref(), Some(&fingerprint));
    }
    for text in [
        "",
        "12",
        &fingerprint[1..],
        &format!("{fingerprint}0"),
        &"é".repeat(16),
    ] {
        assert_eq!(parse_fingerprint(text), None, "{text}");
    }
}

#[test]
fn a_put_key_proves_in_its_own_name_only_and_people_check_all() {
    let ring = KeyRing::random().unwrap().rotated().unwrap();
    let (one, other) = (random_author().unwrap(), random_author().unwrap());
    let put = ring.for_putting(one);
    for secret in ring
        .generations
        .iter()
        .map(|generation| generation.proof_secret.to_hex())
    {
        assert!(
            !put.to_text().contains(&*secret),
            "the secret of the people"
        );
    }
    let proof = |ring: &KeyRing, author, number| {
        let parts: &[&[u8]] = &[b"x"];
        ring.proof_of(author, number, ("use", parts), "it").unwrap()
    };
    for number in [1, 2] {
        assert_eq!(proof(&put, one, number), proof(&ring, one, number));
        assert_eq!(proof(&put, other, number), None);
        assert_eq!(proof(&put, Author::PERSON, number), None);
        let mut all: Vec<_> = [Author::PERSON, one, other]
            .map(|author| proof(&ring, author, number).unwrap().to_string())
            .into();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 3);
    }
    assert_eq!(ring.prove_as_any("use", &[]), put.prove_as_any("use", &[]));
}

#[test]
fn equal_sources_have_one_pseudonym_in_a_repository_and_another_elsewhere() {
    let ring = KeyRing::random().unwrap();
    assert_eq!(
        ring.pseudonym(b"a"),
        ring.rotated().unwrap().pseudonym(b"a")
    );
    assert_eq!(
        ring.pseudonym(b"a"),
        ring.for_putting(random_author().unwrap()).pseudonym(b"a")
    );
    assert_ne!(ring.pseudonym(b"a"), ring.pseudonym(b"b"));
    assert_ne!(
        ring.pseudonym(b"a"),
        KeyRing::random().unwrap().pseudonym(b"a")
    );
}
