"""Labels and words of several languages, for pages that are not in English."""

from __future__ import annotations

from dataclasses import dataclass

from airloop_envs.soup.rng import Rng


@dataclass(frozen=True, slots=True)
class Language:
    code: str
    name: str
    labels: tuple[str, ...]  # price, colour, weight, maker, delivery: in this order
    words: tuple[str, ...]
    right_to_left: bool = False


LANGUAGES = (
    Language(
        "de",
        "German",
        ("Preis", "Farbe", "Gewicht", "Hersteller", "Lieferung"),
        (
            "grün",
            "Tür",
            "Straße",
            "Gemüse",
            "Frühling",
            "Schlüssel",
            "größer",
            "Mädchen",
            "Äpfel",
            "süß",
            "Brücke",
            "Löffel",
            "Käse",
            "Wärme",
        ),
    ),
    Language(
        "fr",
        "French",
        ("Prix", "Couleur", "Poids", "Fabricant", "Livraison"),
        (
            "été",
            "forêt",
            "garçon",
            "île",
            "hôtel",
            "œuf",
            "crème",
            "déjà",
            "château",
            "noël",
            "fenêtre",
            "leçon",
            "père",
            "août",
        ),
    ),
    Language(
        "es",
        "Spanish",
        ("Precio", "Color", "Peso", "Fabricante", "Entrega"),
        (
            "niño",
            "árbol",
            "café",
            "mañana",
            "corazón",
            "jardín",
            "limón",
            "camión",
            "pequeño",
            "música",
            "río",
            "azúcar",
            "montaña",
            "señal",
        ),
    ),
    Language(
        "pl",
        "Polish",
        ("Cena", "Kolor", "Waga", "Producent", "Dostawa"),
        (
            "żółty",
            "książka",
            "łódka",
            "źródło",
            "dźwięk",
            "kość",
            "mąka",
            "świt",
            "ćma",
            "węgiel",
            "róża",
            "śnieg",
            "gęś",
            "pięć",
        ),
    ),
    Language(
        "tr",
        "Turkish",
        ("Fiyat", "Renk", "Ağırlık", "Üretici", "Teslimat"),
        (
            "güneş",
            "çiçek",
            "yağmur",
            "şeker",
            "ışık",
            "gül",
            "köprü",
            "dağ",
            "kış",
            "süt",
            "ağaç",
            "öğle",
            "taş",
            "kuş",
        ),
    ),
    Language(
        "ru",
        "Russian",
        ("Цена", "Цвет", "Вес", "Производитель", "Доставка"),
        (
            "река",
            "дом",
            "зима",
            "книга",
            "поезд",
            "ветер",
            "мост",
            "город",
            "лампа",
            "окно",
            "хлеб",
            "море",
            "сад",
            "ключ",
        ),
    ),
    Language(
        "el",
        "Greek",
        ("Τιμή", "Χρώμα", "Βάρος", "Κατασκευαστής", "Παράδοση"),
        (
            "θάλασσα",
            "ήλιος",
            "δρόμος",
            "νερό",
            "βιβλίο",
            "πόλη",
            "γέφυρα",
            "κήπος",
            "φως",
            "ψωμί",
            "άνεμος",
            "νησί",
            "πέτρα",
            "μήλο",
        ),
    ),
    Language(
        "ja",
        "Japanese",
        ("価格", "色", "重さ", "メーカー", "配送"),
        ("山", "川", "青い", "春", "駅", "本", "窓", "魚", "花", "雪", "橋", "港", "机", "森"),
    ),
    Language(
        "zh",
        "Chinese",
        ("价格", "颜色", "重量", "制造商", "配送"),
        ("山", "河", "春天", "书", "桥", "港口", "窗户", "花", "雪", "灯", "森林", "桌子", "茶", "船"),
    ),
    Language(
        "ko",
        "Korean",
        ("가격", "색상", "무게", "제조사", "배송"),
        ("바다", "하늘", "겨울", "책", "다리", "꽃", "나무", "창문", "강", "눈", "빵", "산", "기차", "빛"),
    ),
)

RIGHT_TO_LEFT = (
    Language(
        "ar",
        "Arabic",
        ("السعر", "اللون", "الوزن", "الشركة", "التوصيل"),
        ("بحر", "جبل", "كتاب", "شمس", "نهر", "جسر", "شجرة", "نافذة", "خبز", "ثلج", "ورد", "مدينة", "ضوء", "ميناء"),
        True,
    ),
    Language(
        "he",
        "Hebrew",
        ("מחיר", "צבע", "משקל", "יצרן", "משלוח"),
        ("ים", "הר", "ספר", "שמש", "נהר", "גשר", "עץ", "חלון", "לחם", "שלג", "פרח", "עיר", "אור", "נמל"),
        True,
    ),
    Language(
        "fa",
        "Persian",
        ("قیمت", "رنگ", "وزن", "سازنده", "ارسال"),
        ("دریا", "کوه", "کتاب", "آفتاب", "رود", "پل", "درخت", "پنجره", "نان", "برف", "گل", "شهر", "چراغ", "بندر"),
        True,
    ),
)

# Some are several code points: joined by U+200D, with a skin tone, flags of two letters.
EMOJI = ("🍎", "🚲", "🌧️", "🎻", "🧭", "🪵", "🐝", "🏔️", "👩‍🔬", "👍🏽", "🇳🇴", "🧑‍🍳", "🦉", "⚓", "🕰️", "🍞", "🛶", "🏳️‍🌈")


def expression(d: Rng, language: Language) -> str:
    """Three different words of the language and a number."""
    return " ".join(d.sample(language.words, 3)) + f" {d.between(100, 9999)}"
