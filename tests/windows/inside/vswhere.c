// Stands in for vswhere.exe: prints, in UTF-8, the folder in MADE_UP_STUDIO if it is asked for it as the build should.
// It does without a C runtime, which zig would compile for minutes, and so without its headers.
typedef unsigned short wchar;
typedef unsigned long dword;
#define KERNEL32(type) __declspec(dllimport) type __stdcall
KERNEL32(wchar *) GetCommandLineW(void);
KERNEL32(int) lstrlenW(const wchar *text);
KERNEL32(dword) GetEnvironmentVariableW(const wchar *name, wchar *text, dword size);
KERNEL32(int) WideCharToMultiByte(unsigned page, dword flags, const wchar *text, int length, char *bytes, int size,
                                  const char *unknown, int *used);
KERNEL32(void *) GetStdHandle(dword which);
KERNEL32(int) WriteFile(void *file, const void *bytes, dword count, dword *written, void *overlapped);
KERNEL32(void) ExitProcess(unsigned code);
enum { kUtf8 = 65001 };
#define STANDARD_OUTPUT ((dword)-11)

static const wchar kAsked[] =
    L" -latest -products * -version [17.0, -requires Microsoft.VisualStudio.Component.VC.Tools.x86.x64"
    L" -property installationPath -utf8";

static int ends_with(const wchar *text, int length, const wchar *end, int end_length) {
    if (length < end_length) { return 0; }
    for (int i = 0; i < end_length; i++) {
        if (text[length - end_length + i] != end[i]) { return 0; }
    }
    return 1;
}

void start(void) {
    const wchar *line = GetCommandLineW();
    if (!ends_with(line, lstrlenW(line), kAsked, sizeof kAsked / sizeof *kAsked - 1)) { ExitProcess(87); }
    static wchar folder[1024];
    static char text[4096];
    if (GetEnvironmentVariableW(L"MADE_UP_STUDIO", folder, 1024) > 0) {
        const int size = WideCharToMultiByte(kUtf8, 0, folder, -1, text, sizeof text - 2, (void *)0, (void *)0);
        text[size - 1] = '\r';
        text[size] = '\n';
        dword written;
        WriteFile(GetStdHandle(STANDARD_OUTPUT), text, (dword)size + 1, &written, (void *)0);
    }
    ExitProcess(0);
}
