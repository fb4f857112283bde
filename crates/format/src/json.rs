//! Reads JSON of others with bounded memory: its elements are counted before it is parsed.
//!
//! A list of empty texts has 3 bytes an element and takes 24 bytes of memory for each, a list of
//! numbers 2 and 32. The documents of fullbore have more than 10 bytes an element: with the limit of
//! [`elements_of`], parsing takes at most a few times the bytes.

use serde::de::DeserializeOwned;

/// Elements that a document may have whatever its length is.
const FREE_ELEMENTS: usize = 4096;

/// Bytes of a longer document for each further element.
const ELEMENT_BYTES: usize = 8;

/// Returns the largest number of elements of a document of this length.
pub fn elements_of(bytes: usize) -> usize {
    FREE_ELEMENTS + bytes / ELEMENT_BYTES
}

/// Parses JSON that has at most `limit` elements.
///
/// # Errors
/// Why it cannot be read, in words.
pub fn parse_counted<T: DeserializeOwned>(bytes: &[u8], limit: usize) -> Result<T, String> {
    let elements = count_elements(bytes);
    if elements > limit {
        return Err(format!("it has {elements} elements, and may have {limit}"));
    }
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}

/// Counts the members and items of all objects and lists; at least as many as a parser finds.
fn count_elements(bytes: &[u8]) -> usize {
    let (mut elements, mut is_text, mut is_escaped) = (0, false, false);
    for byte in bytes {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            b',' | b'[' | b'{' if !is_text => elements += 1,
            _ => {}
        }
    }
    elements
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        root::{Live, PageAt, Root, Segment},
        seal::{open_sealed, seal},
    };

    #[test]
    fn elements_are_counted_outside_of_texts() {
        for (json, elements) in [
            ("1", 0),
            ("[]", 1),
            ("[1,2,3]", 3),
            (r#"{"a": [1, "x,[{\\", "\",["], "b": {}}"#, 6),
        ] {
            assert_eq!(count_elements(json.as_bytes()), elements, "{json}");
        }
    }

    #[test]
    fn a_list_of_nothing_is_refused_before_memory_is_taken() {
        let empty = vec![""; 1 << 20];
        let text = serde_json::to_vec(&empty).unwrap();
        let refused = parse_counted::<Vec<String>>(&text, elements_of(text.len())).unwrap_err();
        assert!(refused.contains("1048576 elements"), "{refused}");
        let sealed = seal(&serde_json::json!({ "bases": empty })).unwrap();
        let error = open_sealed::<serde_json::Value>(&sealed, "it").unwrap_err();
        assert!(error.line().contains("elements"), "{}", error.line());
    }

    #[test]
    fn the_shortest_lists_of_a_root_are_within_the_limit() {
        let segment = Segment {
            stream: 1,
            number: 1,
            bytes: 7,
            frames: 1,
            plain_bytes: 7,
            parts: "0123456789abcdef".into(),
            tape: None,
        };
        let page = PageAt {
            stream: 1,
            entries: 1,
            segment: 1,
            manifest_offset: Some(7),
            ..PageAt::default()
        };
        let root = Root {
            id: "20261121T054501Z-k3f9qz".into(),
            liveness: vec![segment.fully_live(); 50_000],
            segments: vec![segment; 50_000],
            pages: vec![page; 50_000],
            ..Root::default()
        };
        let alone: [Root; 3] = [
            Root {
                liveness: Vec::<Live>::new(),
                pages: Vec::new(),
                ..root.clone()
            },
            Root {
                segments: Vec::new(),
                pages: Vec::new(),
                ..root.clone()
            },
            Root {
                segments: Vec::new(),
                liveness: Vec::new(),
                ..root.clone()
            },
        ];
        for root in alone.into_iter().chain([root]) {
            Root::open(&seal(&root).unwrap(), "it").unwrap();
        }
    }
}
