"""Names the currencies, and how many decimals their minor units have: ISO 4217, list one."""

_NO_DIGITS = frozenset(
    {
        *("BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX"),
        *("VND", "VUV", "XAF", "XOF", "XPF"),
    }
)
_THREE_DIGITS = frozenset({"BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"})
_TWO_DIGITS = frozenset(
    {
        *("AED", "AFN", "ALL", "AMD", "AOA", "ARS", "AUD", "AWG", "AZN", "BAM", "BBD"),
        *("BDT", "BMD", "BND", "BOB", "BRL", "BSD", "BTN", "BWP", "BYN", "BZD", "CAD"),
        *("CDF", "CHF", "CNY", "COP", "CRC", "CUP", "CVE", "CZK", "DKK", "DOP", "DZD"),
        *("EGP", "ERN", "ETB", "EUR", "FJD", "FKP", "GBP", "GEL", "GHS", "GIP", "GMD"),
        *("GTQ", "GYD", "HKD", "HNL", "HTG", "HUF", "IDR", "ILS", "INR", "IRR", "JMD"),
        *("KES", "KGS", "KHR", "KPW", "KYD", "KZT", "LAK", "LBP", "LKR", "LRD", "LSL"),
        *("MAD", "MDL", "MGA", "MKD", "MMK", "MNT", "MOP", "MRU", "MUR", "MVR", "MWK"),
        *("MXN", "MYR", "MZN", "NAD", "NGN", "NIO", "NOK", "NPR", "NZD", "PAB", "PEN"),
        *("PGK", "PHP", "PKR", "PLN", "QAR", "RON", "RSD", "RUB", "SAR", "SBD", "SCR"),
        *("SDG", "SEK", "SGD", "SHP", "SLE", "SOS", "SRD", "SSP", "STN", "SVC", "SYP"),
        *("SZL", "THB", "TJS", "TMT", "TOP", "TRY", "TTD", "TWD", "TZS", "UAH", "USD"),
        *("UYU", "UZS", "VED", "VES", "WST", "XCD", "XCG", "YER", "ZAR", "ZMW", "ZWG"),
    }
)
CURRENCIES = _NO_DIGITS | _TWO_DIGITS | _THREE_DIGITS
"""Those that are legal tender somewhere."""


def minor_digits(currency: str) -> int:
    """Decimals of the currency's minor unit: 2 for EUR, 0 for JPY."""
    if currency in _NO_DIGITS:
        return 0
    return 3 if currency in _THREE_DIGITS else 2
