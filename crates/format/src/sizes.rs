//! Sums of sizes that saturate at the largest number instead of wrapping to 0.
//!
//! Three sparse files together can be larger than a `u64` holds, and a forged root may have any
//! number.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Returns the sum of all `sizes`, or `u64::MAX` if the sum is larger.
pub fn sum(sizes: impl IntoIterator<Item = u64>) -> u64 {
    sizes.into_iter().fold(0, u64::saturating_add)
}

/// Adds `size` to `sum`.
pub fn add(sum: &mut u64, size: u64) {
    *sum = sum.saturating_add(size);
}

/// Adds `size` to a sum that several threads share.
pub fn add_shared(sum: &AtomicU64, size: u64) {
    let _ = sum.fetch_update(Relaxed, Relaxed, |sum| Some(sum.saturating_add(size))); // the closure always returns Some
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_that_is_too_large_is_the_largest_number() {
        assert_eq!(sum([]), 0);
        assert_eq!(sum([1, 2, 3]), 6);
        assert_eq!(sum([u64::MAX, 1, 2]), u64::MAX);
        let mut one = 5;
        add(&mut one, u64::MAX);
        assert_eq!(one, u64::MAX);
        let shared = AtomicU64::new(u64::MAX - 1);
        add_shared(&shared, 1);
        add_shared(&shared, 1);
        assert_eq!(shared.into_inner(), u64::MAX);
    }
}
