"""The environment `soup`: web pages are read with a Python tool and BeautifulSoup."""
