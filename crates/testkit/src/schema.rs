//! Checks lines of `--json` against `doc/json.schema.json`.
//!
//! It knows the keywords that this schema uses, and refuses all others: a rule that nothing checks is worse than none.

use serde_json::{Map, Value};
use std::sync::LazyLock;

static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../../../doc/json.schema.json")).expect("it is JSON")
});

/// The schema.
pub fn schema() -> &'static Value {
    &SCHEMA
}

/// The verbs that have lines, such as `backup`.
pub fn verbs() -> Vec<&'static str> {
    definitions()
        .keys()
        .filter_map(|name| name.strip_prefix("verb."))
        .collect()
}

/// Returns what is wrong with a line of a verb, or of any verb.
///
/// # Errors
/// The reason, for the definition of the line that fits best.
pub fn check_line(verb: Option<&str>, line: &Value) -> Result<(), String> {
    match verb {
        None => check(schema(), line, ""),
        Some(verb) => {
            let definition = definitions().get(&format!("verb.{verb}"));
            let definition = definition.ok_or_else(|| format!("{verb} has no schema"))?;
            check(definition, line, "")
        }
    }
}

/// All definitions, by name.
pub fn definitions() -> &'static Map<String, Value> {
    schema()["$defs"].as_object().expect("it has definitions")
}

fn reference(schema: &Value) -> Option<&str> {
    schema.get("$ref")?.as_str()?.strip_prefix("#/$defs/")
}

/// Checks a value against a schema; `place` names it in the reason.
fn check(schema: &Value, value: &Value, place: &str) -> Result<(), String> {
    let rules = schema.as_object().expect("a schema is an object");
    for (keyword, rule) in rules {
        match &keyword[..] {
            "$schema" | "title" | "description" | "$defs" => {}
            "$ref" => {
                let name = reference(schema).expect("a reference to a definition");
                check(&definitions()[name], value, place)?;
            }
            "type" => check_type(rule, value, place)?,
            "const" if rule == value => {}
            "const" => return Err(format!("{place} is {value}, not {rule}")),
            "enum" if listed(rule).contains(value) => {}
            "enum" => return Err(format!("{place} is {value}, none of {rule}")),
            "minimum" if value.as_f64() >= rule.as_f64() || !value.is_number() => {}
            "minimum" => return Err(format!("{place} is {value}, below {rule}")),
            "pattern" => check_time(rule, value, place)?,
            "items" => {
                for item in value.as_array().into_iter().flatten() {
                    check(rule, item, &format!("{place}[]"))?;
                }
            }
            "required" => {
                let lacks = |name: &&Value| {
                    value.is_object() && value.get(name.as_str().expect("a name")).is_none()
                };
                if let Some(name) = listed(rule).iter().find(lacks) {
                    return Err(format!("{place} lacks {name}"));
                }
            }
            "properties" => {
                for (name, rule) in rule.as_object().expect("properties") {
                    if let Some(value) = value.get(name) {
                        check(rule, value, &format!("{place}.{name}"))?;
                    }
                }
            }
            "additionalProperties" => check_others(rules, rule, value, place)?,
            "anyOf" => check_any(listed(rule), value, place)?,
            other => panic!("the checker does not know the keyword {other:?}"),
        }
    }
    Ok(())
}

fn listed(rule: &Value) -> &Vec<Value> {
    rule.as_array().expect("a list")
}

/// Of several lines, the reason is that of the one with the same `type` that got farthest.
fn check_any(all: &[Value], value: &Value, place: &str) -> Result<(), String> {
    let mut reasons = Vec::new();
    for schema in all {
        match check(schema, value, place) {
            Ok(()) => return Ok(()),
            Err(reason) => reasons.push(reason),
        }
    }
    let is_of_type = |reason: &&String| !reason.starts_with(".type is");
    let told: Vec<_> = reasons.iter().filter(is_of_type).cloned().collect();
    match told.is_empty() {
        true => Err(reasons.join("; ")),
        false => Err(told.join("; ")),
    }
}

fn check_type(rule: &Value, value: &Value, place: &str) -> Result<(), String> {
    let is_of = |kind: &str| match kind {
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("there is no type {other:?}"),
    };
    let is_right = match rule {
        Value::String(kind) => is_of(kind),
        kinds => listed(kinds)
            .iter()
            .any(|kind| is_of(kind.as_str().expect("a type"))),
    };
    match is_right {
        true => Ok(()),
        false => Err(format!("{place} is {value}, no {rule}")),
    }
}

/// The only pattern is that of a time.
fn check_time(rule: &Value, value: &Value, place: &str) -> Result<(), String> {
    let pattern = rule.as_str().expect("a pattern");
    assert!(
        pattern.starts_with("^[0-9]{4}-") && pattern.ends_with("Z$"),
        "{pattern}"
    );
    match value.as_str() {
        Some(text) if text.parse::<jiff::Timestamp>().is_err() || !text.ends_with('Z') => {
            Err(format!("{place} is {text:?}, no time"))
        }
        _ => Ok(()),
    }
}

fn check_others(
    rules: &Map<String, Value>,
    rule: &Value,
    value: &Value,
    place: &str,
) -> Result<(), String> {
    let known = rules.get("properties").and_then(Value::as_object);
    for (name, value) in value.as_object().into_iter().flatten() {
        if known.is_some_and(|known| known.contains_key(name)) {
            continue;
        }
        match rule {
            Value::Bool(false) => return Err(format!("{place} has {name:?}")),
            rule => check(rule, value, &format!("{place}.{name}"))?,
        }
    }
    Ok(())
}
