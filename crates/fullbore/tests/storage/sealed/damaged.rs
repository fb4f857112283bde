//! Every changed byte of a sealed object is found.

use super::*;

/// Is the changed object refused, by reads of its parts and as a whole?
fn refuses(memory: &Storage, ring: &Arc<KeyRing>, key: &str, plain: &[u8]) -> Result<(), String> {
    let sealed = SealedObjects::new(memory.clone(), ring.clone());
    let whole = sealed.get(key);
    match whole {
        Ok(found) => {
            return Err(format!(
                "read as {:?}",
                found.map(|(bytes, _)| bytes == plain)
            ));
        }
        Err(error) if !matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Permission) => {
            return Err(error.line());
        }
        Err(error) if !error.what.contains(key) => return Err(error.line()),
        Err(_) => {}
    }
    // A part that is not touched may be read; a part that is must not be.
    let mut wrong = 0;
    let mut refused = 0;
    for offset in (0..plain.len()).step_by(CHUNK_BYTES) {
        let len = CHUNK_BYTES.min(plain.len() - offset);
        let mut out = Vec::new();
        match sealed.read_at(key, offset as u64, len, &mut out) {
            Ok(()) => wrong += usize::from(out != plain[offset..offset + len]),
            Err(_) => refused += 1,
        }
    }
    if wrong > 0 || refused == 0 {
        return Err(format!(
            "{wrong} parts are other data, {refused} were refused"
        ));
    }
    Ok(())
}

#[test]
fn every_byte_of_an_object_that_is_flipped_is_found() {
    let (memory, sealed, ring) = memory_and_sealed();
    let plain = pattern(3 * CHUNK_BYTES + 100, 5);
    let key = "backups/a/s01-000001.tar.zst";
    upload(&sealed, key, &plain, 1 << 20);
    let stored = get(&memory, key).unwrap();
    let all = stored.len();
    // All of the header, of the borders of chunks and of the end, and some of what is between.
    let edges = (0..=all / (CHUNK_BYTES + 16)).flat_map(|chunk| {
        let offset = OBJECT_PREFIX_BYTES + chunk * (CHUNK_BYTES + 16);
        offset - 20..offset + 20
    });
    let places = (0..OBJECT_PREFIX_BYTES)
        .chain(edges)
        .chain(all - 120..all)
        .chain((0..all).step_by(1999));
    for index in places.filter(|index| *index < all).collect::<BTreeSet<_>>() {
        for bit in [0, 5] {
            let mut changed = stored.clone();
            changed[index] ^= 1 << bit;
            put(&memory, key, &changed);
            refuses(&memory, &ring, key, &plain)
                .unwrap_or_else(|why| panic!("byte {index}, bit {bit}: {why}"));
        }
    }
}

#[test]
fn an_object_that_is_cut_or_goes_on_or_lacks_a_chunk_is_found() {
    let (memory, sealed, ring) = memory_and_sealed();
    let plain = pattern(4 * CHUNK_BYTES, 6);
    let key = "backups/a/manifest";
    upload(&sealed, key, &plain, 1 << 20);
    let stored = get(&memory, key).unwrap();
    let chunk = CHUNK_BYTES + 16;
    let begin = OBJECT_PREFIX_BYTES;
    let cuts = (0..begin + 40).chain((1..=4).flat_map(|number| {
        let border = begin + number * chunk;
        border - 20..(border + 20).min(stored.len())
    }));
    for len in cuts.filter(|len| *len < stored.len()) {
        put(&memory, key, &stored[..len]);
        refuses(&memory, &ring, key, &plain).unwrap_or_else(|why| panic!("{len} bytes: {why}"));
    }
    let longer = [&stored[..], &stored[begin..begin + chunk]].concat();
    let one_byte_more = [&stored[..], b"x"].concat();
    let without_second = [&stored[..begin + chunk], &stored[begin + 2 * chunk..]].concat();
    let mut swapped = stored.clone();
    swapped[begin..begin + chunk].copy_from_slice(&stored[begin + chunk..begin + 2 * chunk]);
    swapped[begin + chunk..begin + 2 * chunk].copy_from_slice(&stored[begin..begin + chunk]);
    for changed in [longer, one_byte_more, without_second, swapped] {
        put(&memory, key, &changed);
        refuses(&memory, &ring, key, &plain).unwrap();
    }
}

#[test]
fn an_object_under_the_key_of_another_or_of_another_repository_is_found() {
    let (memory, sealed, ring) = memory_and_sealed();
    let plain = pattern(1000, 1);
    let first = format!("backups/{ID}/s01-000001.tar.zst");
    let second = format!("backups/{OTHER_ID}/s01-000001.tar.zst");
    upload(&sealed, &first, &plain, 1000);
    put(&memory, &second, &get(&memory, &first).unwrap());
    assert!(sealed.get(&first).is_ok());
    refuses(&memory, &ring, &second, &plain).unwrap();
    // Made by someone who knows the public key, as an age file and as an object of another repository.
    let (other_memory, other, _) = memory_and_sealed();
    upload(&other, &second, &plain, 1000);
    put(&memory, &second, &get(&other_memory, &second).unwrap());
    refuses(&memory, &ring, &second, &plain).unwrap();
    let recipients = [fullbore_crypt::UserRecipient::Native(
        ring.newest().recipient().clone(),
    )];
    put(
        &memory,
        &second,
        &fullbore_crypt::wrap_secret(&plain, &recipients).unwrap(),
    );
    refuses(&memory, &ring, &second, &plain).unwrap();
    put(&memory, &second, &plain);
    refuses(&memory, &ring, &second, &plain).unwrap();
}

#[test]
fn an_object_that_another_process_replaced_is_read_anew() {
    let (memory, sealed, ring) = memory_and_sealed();
    let other = SealedObjects::new(memory, ring);
    for (length, offset) in [
        (3 * CHUNK_BYTES, 70_000),
        (10, 3),
        (5 * CHUNK_BYTES + 9, 300_000),
    ] {
        let bytes = pattern(length, offset);
        upload(&other, "a/o", &bytes, 1 << 20);
        assert!(read(&sealed, "a/o", offset, 5) == bytes[offset as usize..offset as usize + 5]);
    }
}
