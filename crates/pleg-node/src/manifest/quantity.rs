//! Quantities as Kubernetes writes them: `500m`, `0.5`, `128Mi`, `1e3`.

use super::names::quoted;

/// Why a text is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// It is not written as one.
    #[error("{} is not a quantity; expected a value such as 500m, 2, 128Mi or 1G", quoted(.0))]
    Syntax(String),
    /// It does not fit.
    #[error("{} is too large: no node has that much", quoted(.0))]
    TooLarge(String),
}

/// A quantity, in thousandths. Holds up to 9 billion cores, or 9 PB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Quantity {
    milli: i64,
}

impl Quantity {
    /// One unit.
    pub const ONE: Self = Self { milli: 1000 };

    /// A quantity of whole units.
    #[cfg(test)]
    pub(crate) fn whole(units: i64) -> Self {
        Self { milli: units * 1000 }
    }

    /// Thousandths: of a core, for CPU.
    pub fn milli(self) -> i64 {
        self.milli
    }

    /// Whole units, rounded up: bytes, for memory.
    pub fn units(self) -> i64 {
        self.milli / 1000 + i64::from(self.milli % 1000 > 0)
    }

    /// Both together.
    #[must_use]
    pub fn saturating_add(self, other: Self) -> Self {
        Self {
            milli: self.milli.saturating_add(other.milli),
        }
    }

    /// Parses a quantity. Negative ones are refused.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let bad = || QuantityError::Syntax(text.to_owned());
        let end = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, suffix) = text.split_at(end);
        // Longer numbers are zeros, or larger than anything.
        if number.len() > 40 {
            return Err(bad());
        }
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(bad());
        }
        let scale = Scale::parse(suffix).ok_or_else(bad)?;
        let digits: i128 = format!("0{whole}{fraction}").parse().map_err(|_| bad())?;
        // A fraction is at most 40 digits, an exponent at most 18.
        let tens = scale.tens + 3 - i32::try_from(fraction.len()).map_err(|_| bad())?;
        let too_large = || QuantityError::TooLarge(text.to_owned());
        let scaled = digits.checked_mul(scale.factor).ok_or_else(too_large)?;
        let power = 10_i128.checked_pow(tens.unsigned_abs());
        let milli = if tens >= 0 {
            power
                .and_then(|power| scaled.checked_mul(power))
                .ok_or_else(too_large)?
        } else {
            // Less than a thousandth is rounded up, as in Kubernetes.
            power.map_or(i128::from(scaled > 0), |power| {
                scaled / power + i128::from(scaled % power > 0)
            })
        };
        i64::try_from(milli)
            .map(|milli| Self { milli })
            .map_err(|_| too_large())
    }
}

/// The factor of a suffix.
struct Scale {
    factor: i128,
    tens: i32,
}

impl Scale {
    fn parse(suffix: &str) -> Option<Self> {
        let tens = |tens| Some(Self { factor: 1, tens });
        let binary = |shift: u32| {
            Some(Self {
                factor: 1 << shift,
                tens: 0,
            })
        };
        match suffix {
            "n" => tens(-9),
            "u" => tens(-6),
            "m" => tens(-3),
            "" => tens(0),
            "k" => tens(3),
            "M" => tens(6),
            "G" => tens(9),
            "T" => tens(12),
            "P" => tens(15),
            "E" => tens(18),
            "Ki" => binary(10),
            "Mi" => binary(20),
            "Gi" => binary(30),
            "Ti" => binary(40),
            "Pi" => binary(50),
            "Ei" => binary(60),
            _ => {
                let exponent = suffix.strip_prefix(['e', 'E'])?;
                let exponent: i32 = exponent.parse().ok()?;
                tens((-18..=18).contains(&exponent).then_some(exponent)?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table() {
        for (text, milli) in [
            ("0", 0),
            ("1", 1000),
            ("500m", 500),
            ("0.5", 500),
            (".5", 500),
            ("1.", 1000),
            ("1.5", 1500),
            ("100u", 1),
            ("1n", 1),
            ("0.0001", 1),
            ("2k", 2_000_000),
            ("1e3", 1_000_000),
            ("1E3", 1_000_000),
            ("12e-1", 1200),
            ("1Ki", 1_024_000),
            ("1.5Mi", 1_572_864_000),
            ("128974848", 128_974_848_000),
            ("129M", 129_000_000_000),
            ("123Mi", 128_974_848_000),
            ("1Gi", 1_073_741_824_000),
            ("8Ti", 8_796_093_022_208_000),
        ] {
            assert_eq!(Quantity::parse(text), Ok(Quantity { milli }), "{text}");
        }
        for text in [
            "",
            ".",
            "m",
            "Mi",
            "-1",
            "+1",
            "1mi",
            "1KI",
            "1 Gi",
            "1.2.3",
            "1e",
            "1e99",
            "1ee3",
            "0x10",
            "1_000",
            "99Ei",
            "9E",
            "١",
            &"9".repeat(39),
            &"9".repeat(41),
            &format!("1.{}", "0".repeat(50)),
        ] {
            assert!(Quantity::parse(text).is_err(), "{text}");
        }
        assert_eq!(Quantity::parse("1500m").unwrap().units(), 2);
        assert_eq!(Quantity::parse("1Mi").unwrap().units(), 1 << 20);
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[0-9]{0,42}[.]?[0-9]{0,42}[a-zA-Z+-]{0,3}[0-9]{0,3}") {
            let _ = Quantity::parse(&text);
        }
    }
}
